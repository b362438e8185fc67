//! A gateway that has no descriptor left, which is a state of the whole process: one test alone.
#![allow(clippy::unwrap_used)]

use std::fs::File;

use rustix::process::{Resource, getrlimit, setrlimit};
use whimbrel_proxy::{Guard, Rules, UpstreamError};

#[tokio::test]
async fn what_cannot_be_told_from_the_gateway_itself_is_refused() {
    let guard = Guard::new(Rules::default());
    let peer = whimbrel_base::SecretKey::generate().id();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(64), ..limit }).unwrap();
    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let said = guard.connect(&"203.0.113.77:80".parse().unwrap(), peer).await;
    drop(all);
    let error = said.unwrap_err();
    assert!(matches!(error, UpstreamError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("can't be told whether 203.0.113.77 is the gateway's"), "{error}");
}

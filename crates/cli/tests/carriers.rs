//! Files over every carrier.
#![allow(clippy::unwrap_used)]

use std::fs;

use crate::common::{LIMIT, World};

const INBOX: &str = "inbox.laptop.bob@example.org";

#[test]
fn a_file_arrives_over_every_carrier() {
    let (world, _names) = World::with_names();
    let (ada, inbox) = (world.id("ada"), world.path("inbox"));
    fs::create_dir_all(&inbox).unwrap();
    for carrier in ["auto", "tcp", "quic", "mptcp"] {
        let file = world.path("ada").join(carrier);
        fs::write(&file, vec![7; 300_000]).unwrap();
        let args = ["receive", "--as", INBOX, "--allow", &ada, "--dir", inbox.to_str().unwrap(), "--once"];
        let mut receive = world.start("bob", &[&args[..], &["--carrier", carrier, "--json", "-q"]].concat());
        receive.next_json();
        let args = ["send", file.to_str().unwrap(), "--to", INBOX, "--carrier", carrier, "--json", "-q"];
        world.start("ada", &args).output(LIMIT).succeeded();
        receive.output(LIMIT).succeeded();
        assert!(fs::read(inbox.join(carrier)).unwrap() == fs::read(&file).unwrap(), "{carrier}");
    }
}

#[test]
fn a_carrier_that_does_not_exist_is_named_with_those_that_do() {
    World::new().run("a", &["status", "--carrier", "pigeon"]).failed(2, &["pigeon", "quic"]);
}

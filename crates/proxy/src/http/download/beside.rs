//! An object whose first bytes do not come: they are asked for over another network too, and whichever brings
//! them first has the rest decided. A radio network may stand still for seconds and then go on, which no
//! forecast knows and no error tells.

use super::Download;
use crate::http::answers::UNKNOWN;
use crate::http::body::Body;
use crate::http::decided::Decided;
use crate::http::problem::Problem;
use hyper::Response;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether an object is late: others of its server may tell meanwhile what is usual.
const LOOK: Duration = Duration::from_millis(100);

/// An object that was asked for.
pub(super) type Asked = Pin<Box<dyn Future<Output = Result<Response<Body>, Problem>> + Send>>;

impl Download {
    /// The same object by the best route over another network than the one that was decided.
    pub(super) fn beside(&self) -> Option<Box<Self>> {
        let decided = self.decided.network();
        let route = self.decided.routes.iter().find(|route| route.way.interface != decided)?.clone();
        let (proxy, to) = (Arc::clone(&self.proxy), self.to.clone());
        let (head, decided, began) = (self.head.clone(), Decided::by(route), Instant::now());
        Some(Box::new(Self { proxy, to, head, decided, was_alone: false, began }))
    }

    /// Waits until the object is late.
    async fn is_late(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let late = self.proxy.answers.of(&self.to).map_or(UNKNOWN, |answers| answers.late());
            if self.began.elapsed() >= late {
                return;
            }
        }
    }

    /// Its first bytes have come.
    pub(super) fn has_begun(&self) {
        let answers = self.proxy.answers.of(&self.to).unwrap_or_default();
        self.proxy.answers.put(&self.to, answers.after(self.began.elapsed()));
    }
}

/// The object as it was asked for, or, if that is late, as it comes by the other way, whichever is sooner.
/// One that fails waits for the other.
pub(super) async fn sooner(mut asked: Asked, mut beside: Box<Download>) -> Result<Response<Body>, Problem> {
    tokio::select! {
        biased;
        answer = &mut asked => return answer,
        () = beside.is_late() => {}
    }
    tracing::debug!(to = %beside.to, network = %beside.decided.network(), "an object is late: asked for there too");
    beside.began = Instant::now();
    let first = beside.first();
    let mut beside: Asked = Box::pin(beside.in_two_steps(first));
    tokio::select! {
        biased;
        answer = &mut asked => match answer {
            Ok(answer) => Ok(answer),
            Err(_) => beside.await,
        },
        answer = &mut beside => match answer {
            Ok(answer) => Ok(answer),
            Err(_) => asked.await,
        },
    }
}

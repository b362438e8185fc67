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
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked whether an object is late: others of its server may tell meanwhile what is usual.
const LOOK: Duration = Duration::from_millis(100);

/// An object that was asked for.
pub(super) type Asked = Pin<Box<dyn Future<Output = Result<Response<Body>, Problem>> + Send>>;

/// What the two know of each other that ask for an object.
#[derive(Default)]
pub(super) struct Pair {
    /// The network that the first goes over.
    network: String,
    /// The second has begun: both stay where they are.
    are_two: bool,
}

impl Download {
    /// The same object, to be asked for over another network than the first.
    pub(super) fn beside(&self) -> Box<Self> {
        self.pair().network = self.decided.network().to_owned();
        let (proxy, to) = (Arc::clone(&self.proxy), self.to.clone());
        let decided = Decided { routes: self.decided.routes.clone(), ..Decided::default() };
        let (head, decided_for, pair) = (self.head.clone(), self.decided_for, Arc::clone(&self.pair));
        Box::new(Self { proxy, to, head, decided, decided_for, pair, was_alone: false, began: self.began })
    }

    /// Whether the first may go over this network instead, as it does then.
    pub(super) fn moves_to(&self, network: &str) -> bool {
        let mut pair = self.pair();
        if !pair.are_two {
            pair.network = network.to_owned();
        }
        !pair.are_two
    }

    /// Takes the best route over another network than the first goes over by now, if there is one.
    fn goes_elsewhere(&mut self) -> bool {
        let first = {
            let mut pair = self.pair();
            pair.are_two = true;
            pair.network.clone()
        };
        let mut routes = std::mem::take(&mut self.decided.routes).into_iter();
        let route = routes.find(|route| route.way.interface != first);
        self.decided = route.map(Decided::by).unwrap_or_default();
        self.began = Instant::now();
        !self.decided.routes.is_empty()
    }

    fn pair(&self) -> MutexGuard<'_, Pair> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long after it was asked for an object of the server is late.
    pub(super) fn late(&self) -> Duration {
        self.proxy.answers.of(&self.to).map_or(UNKNOWN, |answers| answers.late())
    }

    /// Waits until the object is late.
    async fn is_late(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.began.elapsed() >= self.late() {
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
    if !beside.goes_elsewhere() {
        return asked.await;
    }
    tracing::debug!(to = %beside.to, network = %beside.decided.network(), "an object is late: asked for there too");
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

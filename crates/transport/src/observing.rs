//! Asking where others see this endpoint's UDP sockets, and answering those who ask. What was told is kept in
//! [`Observed`](crate::observed::Observed).

#[cfg(test)]
mod elsewhere;
mod open;
mod probe;
mod vantage;

use std::sync::Arc;

use crate::endpoint_core::EndpointCore;
use crate::punch;

pub(crate) use open::try_gateways;
pub(crate) use probe::measure;
pub(crate) use vantage::answer_beside;

/// Asks those that are to be asked, and tells clients behind relays what has changed, until its task is
/// aborted.
pub(crate) async fn ask(core: Arc<EndpointCore>) {
    let mut seen = core.observed.watch();
    loop {
        let (requests, due) = core.observed.due();
        for (request, at) in requests {
            core.send_notice(&request, at).await;
        }
        core.observed.publish();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = core.observed.changed() => {}
            _ = seen.changed() => punch::tell_clients(&core),
        }
    }
}

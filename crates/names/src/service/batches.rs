//! Answers with what a user's devices left for each other.

use super::answers::seconds_until;
use crate::protocol::{LeftBehind, MAX_HEARTBEAT_NAMES, Response};
use crate::store::batches::{Batch, MAX_BATCH};

/// As many as fit into an answer: one at least.
pub(super) fn page(behind: Vec<Batch>) -> Response {
    let (mut batches, mut bytes) = (Vec::new(), 0);
    for Batch { number, by, expires, bytes: batch } in behind {
        bytes += batch.len();
        if !batches.is_empty() && (bytes > MAX_BATCH || batches.len() == MAX_HEARTBEAT_NAMES) {
            return Response::Batches { batches, more: true };
        }
        batches.push(LeftBehind { number, by, seconds: seconds_until(expires), batch });
    }
    Response::Batches { batches, more: false }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use whimbrel_base::EndpointId;

    use super::*;
    use crate::clock::now;
    use crate::protocol::{Decoder, Reply, encode};

    fn batch(number: u64, size: usize) -> Batch {
        let (by, expires) =
            (EndpointId::from_bytes(&[255; 32]), now().saturating_add(Duration::from_secs(99)));
        Batch { number: u64::MAX - number, by, expires, bytes: vec![255; size] }
    }

    /// How many a client reads of the answer, and whether more follow.
    fn read(behind: Vec<Batch>) -> (usize, bool) {
        let mut decoder = Decoder::<Reply>::new();
        decoder.push(&encode(&Reply::Response { request: u64::MAX, response: page(behind) }).unwrap());
        match decoder.next_message().unwrap() {
            Some(Reply::Response { response: Response::Batches { batches, more }, .. }) => {
                (batches.len(), more)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_of_batches_is_one_that_a_client_reads() {
        assert_eq!(read(Vec::new()), (0, false));
        assert_eq!(read(vec![batch(0, MAX_BATCH)]), (1, false));
        assert_eq!(read(vec![batch(0, MAX_BATCH), batch(1, 1)]), (1, true));
        assert_eq!(read((0..100).map(|number| batch(number, 1)).collect()), (MAX_HEARTBEAT_NAMES, true));
        let some = MAX_BATCH / MAX_HEARTBEAT_NAMES;
        let full = (0..100).map(|number| batch(number, some)).collect();
        assert_eq!(read(full), (MAX_HEARTBEAT_NAMES, true));
    }
}

//! Answers of one form.

use whimbrel_base::UnixTime;

use crate::clock::now;
use crate::protocol::Response;

/// It was done, and counts until then.
pub(super) fn accepted(expires: UnixTime) -> Response {
    Response::Accepted { seconds: seconds_until(expires) }
}

/// For how many seconds something counts from now.
pub(super) fn seconds_until(time: UnixTime) -> u32 {
    u32::try_from(time.since(now()).as_secs()).unwrap_or(u32::MAX)
}

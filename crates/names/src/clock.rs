//! The wall-clock time.

use std::time::SystemTime;

use whimbrel_base::UnixTime;

/// The time now.
pub(crate) fn now() -> UnixTime {
    SystemTime::now().into()
}

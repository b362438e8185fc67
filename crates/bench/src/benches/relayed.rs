//! Whimbrel's relay beside HAProxy, which splices TCP as well, and beside iroh's: how much it carries, what
//! it delays and holds, and how soon a peer behind it is heard.

mod carried;
pub(crate) mod child;
pub(crate) mod first_byte;
pub(crate) mod idle;
#[cfg(feature = "peers")]
pub(crate) mod iroh;
mod served;
pub(crate) mod speed;
mod stage;

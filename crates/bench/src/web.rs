//! An ordinary web server and what asks it: HTTP/1.1 with connections that are kept and ranges, and objects
//! that are as long as their paths say. Neither knows anything of Whimbrel.

mod client;
mod content;
mod head;
mod load;
mod server;

pub(crate) use self::client::{Dialler, Way};
pub(crate) use self::content::Content;
pub(crate) use self::load::{Counted, Load};
pub(crate) use self::server::WebServer;

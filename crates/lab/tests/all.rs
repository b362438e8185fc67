//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod hosts;
mod links;
mod nat_kinds;
mod routers;
mod support;
mod two_links;

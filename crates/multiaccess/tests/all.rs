//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod by_whimbrel;
mod client;
mod known_links;
mod manager;
mod names;
mod steering;
mod support;

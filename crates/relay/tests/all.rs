//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod aliases;
mod breaks;
mod chosen;
mod crowds;
mod gate;
mod groups;
mod half_open;
mod homes;
mod lab;
#[path = "../../transport/tests/lab_support/mod.rs"]
mod lab_support;
mod lifetimes;
mod loopback;
mod lying;
mod matrix;
mod mobility;
mod open_gateways;
mod punching;
mod quic;
mod relay;
mod take_over;

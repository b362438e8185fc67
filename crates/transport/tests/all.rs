//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod causes;
mod events;
mod hand_over;
mod lab;
mod lab_support;
mod limits;
mod loopback;
mod messages;
mod pass_on;
mod python_client;
mod quic;
mod quic_security;
mod raw;
mod reach;
mod records;
mod security;
mod set_paths;
mod signals;
mod stalled;
mod suspend;
mod tickets;

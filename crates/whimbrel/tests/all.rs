//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod blocking;
mod blocking_connections;
mod documents;
mod durable;
mod durable_kills;
mod end_of_file;
mod example_programs;
mod face;
mod group;
mod imports;
mod lab_names;
#[path = "../../transport/tests/lab_support/mod.rs"]
mod lab_support;
mod listening;
mod sources;
mod streams;
mod support;
mod suspend;

//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod admission;
mod appointments;
mod batches;
mod between_users;
mod kill;
mod lease;
mod meetings;
mod moves;
mod older_services;
mod proof;
mod protocol_doc;
mod push;
mod readers;
mod service;
mod support;
mod vouchers;

//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod har_files;
mod modern_effects;
mod more_bandwidth;
mod oracle;
mod program;
mod properties;
mod purposes;

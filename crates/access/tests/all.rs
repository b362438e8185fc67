//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod documents;
mod forecasts;
mod intents;
mod policies;
mod properties;
mod registry;
mod support;
mod table_one;

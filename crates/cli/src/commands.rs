//! The commands, one file each.

pub(crate) mod access;
pub(crate) mod chat;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod expose;
pub(crate) mod forward;
pub(crate) mod gateway;
pub(crate) mod help;
pub(crate) mod id;
pub(crate) mod invite;
pub(crate) mod limit;
pub(crate) mod names;
pub(crate) mod paths;
pub(crate) mod pipe;
pub(crate) mod proxy;
pub(crate) mod receive;
pub(crate) mod relay;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod ssh;
pub(crate) mod status;
pub(crate) mod trust;

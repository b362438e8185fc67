//! What a host knows of its access networks without asking anybody: the round-trip times of its TCP
//! connections and the counters of its interfaces (*Socket Intents*, §V-E1), as estimates for the policies of
//! `whimbrel-access`; and the manager that answers programs by them.
//!
//! [`Survey`] asks the kernel, over netlink, without privileges. What it makes of the answers is pure:
//! [`RoundTrips`] of all connections from an address, and a [`Meter`] for each counter. [`Manager`] measures
//! for as long as it runs, and decides for its clients on a Unix socket, whose [`protocol`] is
//! `docs/manager.md`.
//!
//! ```text
//! network_manager               what costs money, by NetworkManager's word
//! wifi, nl80211                 signal, rates and use of the channel where there is Wi-Fi; its messages (pure)
//! survey, networks, watch       what there is, and that it changed: asked of the kernel
//! kernel                        its netlink sockets; links, addresses, leads, counters, diag, netlink and genl
//!                               are messages (pure)
//! meter, round_trips, routes    what follows from it (pure)
//! measure                       how often it is asked
//! paths                         an immutable snapshot, by the policies' numbers
//! decide, load, failures, words a decision, what it depends on, and its reasons (pure)
//! by_whimbrel                   where a connection of Whimbrel is right (pure)
//! names                         names, looked up by each interface for itself
//! external                      another program that decides
//! mptcp                         Multipath TCP: what the kernel knows and is told
//! subflows                      which subflows a connection is to have (pure)
//! steering, steer               that it has them
//! helper                        a program with more rights that tells the kernel
//! client                        a program's side: connect, resolve, and a pool for messages
//! shared, session, manager      the service; protocol, request, refusal, target, settings are its forms
//! door                          a socket that lets so many in, for the manager and the helper
//! deciders                      who decides for which of its users
//! ```

#[cfg(target_os = "linux")]
mod addresses;
#[cfg(target_os = "linux")]
mod by_whimbrel;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod counters;
#[cfg(target_os = "linux")]
mod decide;
#[cfg(target_os = "linux")]
mod deciders;
#[cfg(target_os = "linux")]
mod diag;
#[cfg(target_os = "linux")]
mod door;
#[cfg(target_os = "linux")]
mod external;
#[cfg(target_os = "linux")]
mod failures;
/// What fuzz targets need.
#[cfg(all(feature = "fuzzing", target_os = "linux"))]
#[allow(clippy::expect_used)]
pub mod fuzzing;
#[cfg(target_os = "linux")]
mod genl;
#[cfg(target_os = "linux")]
mod helper;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod lateness;
#[cfg(target_os = "linux")]
mod leads;
#[cfg(target_os = "linux")]
mod links;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod manager;
#[cfg(target_os = "linux")]
mod measure;
mod meter;
#[cfg(target_os = "linux")]
mod mptcp;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
mod network_manager;
#[cfg(target_os = "linux")]
mod networks;
#[cfg(target_os = "linux")]
mod nl80211;
#[cfg(target_os = "linux")]
mod parting;
mod paths;
pub mod protocol;
#[cfg(target_os = "linux")]
mod refusal;
#[cfg(target_os = "linux")]
mod request;
mod round_trips;
mod routes;
#[cfg(target_os = "linux")]
mod session;
mod settings;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod steer;
#[cfg(target_os = "linux")]
mod steering;
#[cfg(target_os = "linux")]
mod subflows;
#[cfg(target_os = "linux")]
mod survey;
#[cfg(target_os = "linux")]
mod target;
#[cfg(target_os = "linux")]
mod watch;
#[cfg(target_os = "linux")]
mod wifi;
#[cfg(target_os = "linux")]
mod words;

#[cfg(target_os = "linux")]
pub use client::{
    Candidate, Client, ClientError, Connected, GatewayOr, Pool, Pooled, Watcher, host_socket_path,
    socket_path,
};
#[cfg(target_os = "linux")]
pub use helper::{Helper, HelperError, helper_path};
#[cfg(target_os = "linux")]
pub use manager::{MAX_CLIENTS, Manager, StartError};
pub use meter::Meter;
#[cfg(target_os = "linux")]
pub use names::DnsSockets;
#[cfg(target_os = "linux")]
pub use networks::own_networks;
#[cfg(target_os = "linux")]
pub use paths::Paths;
pub use round_trips::{RoundTrips, TcpConnection};
pub use routes::{Prefix, Routes};
pub use settings::{InterfaceSettings, Server, Settings, SettingsError};
#[cfg(target_os = "linux")]
pub use survey::{AccessPath, Survey};
#[cfg(target_os = "linux")]
pub use wifi::Radios;

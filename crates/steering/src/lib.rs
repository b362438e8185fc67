//! Has the multi-access manager (`whimbrel access serve`) choose the networks of Whimbrel's connections.
//!
//! A [`Steering`] asks the manager for all connections that an endpoint dials, and for those that it will
//! dial: which networks they are to use, which they are to like best, and whether several are to be used
//! together. What it answers becomes their [`PathPolicy`](whimbrel_transport::PathPolicy) and mode
//! ([`Usage::of`]). It is asked again when this host's networks change, when the manager's estimates have
//! changed much, and when something happened to a connection's paths. It is told of paths that fail and work,
//! and of what QUIC measures. While no manager answers, connections go on by their own policy.
//! What it says of the signals of Wi-Fi, all connections of the endpoint hear
//! ([`set_signals`](whimbrel_transport::Endpoint::set_signals)).
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use whimbrel_transport::{Allow, ListenOptions};
//! # let desk = whimbrel_transport::Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await?;
//! # let mut listener = desk.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
//! # tokio::spawn(async move {
//! #     while let Some(connection) = listener.accept().await {
//! #         drop(connection.accept_stream().await);
//! #     }
//! # });
//! # let peer = desk.addr();
//! # let empty = std::env::temp_dir().join("no-manager-is-here");
//! use whimbrel_steering::{Client, Steering};
//!
//! let endpoint = whimbrel_transport::Endpoint::builder().bind().await?;
//! let manager = Client::default(); // this user's
//! # let manager = Client::at(&empty);
//! let nothing_that_costs = "cost=no-expense".parse()?;
//! let steering = Steering::start(&endpoint, manager, nothing_that_costs, |news| eprintln!("{news}")).await;
//!
//! let connection = endpoint.connect(peer).await?;
//! // Of this one more is known.
//! steering.intend(&connection, "category=bulk cost=no-expense".parse()?);
//! # Ok(())
//! # }
//! ```
//!
//! All streams of a connection share its paths: traffic with other intents has a connection of its own.
//!
//! ```text
//! usage      what a decision means for a connection's paths (pure)
//! change     whether estimates have changed much (pure)
//! measured   what the manager is told of QUIC's paths (pure)
//! signals    what the endpoint is told of Wi-Fi (pure)
//! standing   whether there is a manager, and the paths that it sees
//! table      what is known of each connection
//! steering   the exchange with the manager
//! ```

#[cfg(target_os = "linux")]
mod change;
#[cfg(target_os = "linux")]
mod measured;
#[cfg(target_os = "linux")]
mod news;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod standing;
#[cfg(target_os = "linux")]
mod steering;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod usage;

#[cfg(target_os = "linux")]
pub use news::News;
#[cfg(target_os = "linux")]
pub use steering::Steering;
#[cfg(target_os = "linux")]
pub use usage::Usage;
#[cfg(target_os = "linux")]
pub use whimbrel_access::Intents;
#[cfg(target_os = "linux")]
pub use whimbrel_multiaccess::Client;

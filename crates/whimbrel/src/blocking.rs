//! Streams and listeners for programs without an async runtime, used like those of [`std::net`].
//!
//! ```
//! use std::io::{Read, Write};
//! use whimbrel::blocking::{Listener, Stream};
//! use whimbrel::{Allow, ListenOptions};
//!
//! # fn main() -> std::io::Result<()> {
//! // std: TcpListener::bind("0.0.0.0:7000")?
//! let listener = Listener::bind(ListenOptions::unnamed().allow(Allow::Any))?;
//! let ticket = listener.ticket();
//! std::thread::spawn(move || listener.accept()?.0.write_all(b"hello"));
//!
//! // std: TcpStream::connect("desk.example.org:7000")?
//! let mut stream = Stream::connect(ticket)?; // or "echo.desk.user@example.org", with a name service
//! let mut greeting = [0; 5];
//! stream.read_exact(&mut greeting)?;
//! assert_eq!(&greeting, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # More than streams
//! [`Endpoint::connect_to`] and [`Endpoint::listen_for_connections`] give whole [`Connection`]s, with all
//! that [`crate::Connection`] can do: several streams, of one direction too, messages, events, sleeping and
//! waking:
//!
//! ```
//! use std::io::Read;
//! use std::time::Duration;
//! use whimbrel::blocking::Endpoint;
//! use whimbrel::{Allow, Class, FlowOptions, ListenOptions, Outcome, SendOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let desk = Endpoint::bind(whimbrel::Endpoint::builder())?;
//! let calls = desk.listen_for_connections(ListenOptions::unnamed().allow(Allow::Any))?;
//! let laptop = Endpoint::bind(whimbrel::Endpoint::builder())?;
//! let connection = laptop.connect_to(desk.ticket())?;
//! let accepted = calls.accept()?;
//!
//! let flow = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED))?;
//! let sent = flow.send("20.5 degrees", SendOptions::default())?;
//! assert_eq!(accepted.recv_message()?.data, b"20.5 degrees");
//! assert_eq!(sent.outcome(), Outcome::Delivered);
//!
//! // Asleep it is bytes, which may be woken in another process, on another host.
//! let asleep = connection.suspend(Duration::from_secs(5))?;
//! let connection = laptop.resume(&asleep)?;
//! connection.flows()[0].send("21.0 degrees", SendOptions::default())?;
//! assert_eq!(accepted.recv_message()?.data, b"21.0 degrees");
//!
//! accepted.open_uni()?.close(Duration::from_secs(5))?;
//! let mut nothing = Vec::new();
//! connection.accept_uni()?.read_to_end(&mut nothing)?;
//! assert!(nothing.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! [`Endpoint::open_state`] has [durable messages](State), [`Endpoint::group`] and [`Endpoint::new_group`]
//! [messages to many](Group). Where a call of the async face has an error of its own, so has this one; an
//! [`io::Error`](std::io::Error) is what `std::net` would give.
//!
//! # What is as in `std`
//! - [`Stream`] and `&Stream` are [`Read`](std::io::Read) and [`Write`](std::io::Write); reading and writing
//!   never wait for each other.
//! - Timeouts: [`Stream::set_read_timeout`], [`Stream::set_write_timeout`]; the error's kind is `WouldBlock`
//!   (`TimedOut` on Windows).
//! - [`Stream::try_clone`] gives another handle to the same stream; [`Stream::shutdown`] ends one direction
//!   or both for all of them.
//! - The end of the peer's stream is read as 0, then and ever after.
//!
//! # What is different
//! - A stream outlives addresses: it waits when the peer is away, for up to
//!   [`linger`](crate::Config::linger), instead of failing. Set timeouts if you want to know.
//! - **Dropping** the last handle ends the stream in order, as in `std`. There the kernel goes on to send
//!   what was written when the process ends; here nobody would. So the drop waits until the peer has it all,
//!   for at most the stream's [linger time](Stream::set_linger). [`Stream::close`] does the same and says
//!   whether it succeeded.
//! - After `shutdown(Read)` the peer's writes fail, where TCP would let it fill a buffer that nobody reads.
//! - Errors wrap [`ConnectError`](crate::ConnectError), [`ListenError`](crate::ListenError) and
//!   [`BindError`](crate::BindError), which say what to do.
//!
//! # Behind it
//! A runtime with two threads per process, however many streams there are; it starts with the first endpoint.
//! [`Stream::connect`] and [`Listener::bind`] use the process's [default
//! endpoint](Endpoint::process_default), which two environment variables set up. Without a file for its key
//! it listens under no name: the name could never be changed again. Reads and writes take place in the thread
//! that calls them.

mod connection;
mod durable;
mod endpoint;
mod flow;
mod group;
mod halves;
mod listener;
mod process;
mod runtime;
mod stream;
mod wait;

pub use connection::{Connection, Connections, Events};
pub use durable::{DurableFlow, DurableMessage, DurablePeer, Receipt, State};
pub use endpoint::Endpoint;
pub use flow::{Flow, Sent};
pub use group::{Delivery, Group};
pub use halves::{RecvHalf, SendHalf};
pub use listener::{Incoming, Listener};
pub use process::{IDENTITY_VARIABLE, NAMES_VARIABLE};
pub use stream::{DEFAULT_LINGER, Stream};

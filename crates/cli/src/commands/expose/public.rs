//! `whimbrel expose --public`: a local TCP service for anybody, by a port or a host of a gateway.

use futures_util::FutureExt;
use futures_util::future::select_all;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use whimbrel_proxy::{Answer, Arrival, Offering, Publication, PublishError, Status, proxy_header};
use whimbrel_transport::{Connection, Stream};

use super::{Expose, TARGET_LIMIT};
use crate::failure::Failure;
use crate::halt::{Halter, Tie};
use crate::local::LocalSocket;
use crate::manager::Ready;
use crate::network::{self, Network, Peer, Wish};
use crate::options::Globals;
use crate::status::{About, Reporter};
use crate::tunnel::{Halted, Tunnel};
use crate::{files, output, serving};

/// As without --public, for `whimbrel limit` and `whimbrel paths`.
const COMMAND: &str = "expose";
/// For the gateway to say who has come, and to be told what becomes of it.
const WORDS: Duration = Duration::from_secs(10);
/// Before a gateway that was lost is asked again; doubled each time, up to the second.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What of a gateway leads here.
#[derive(Args, Clone, Debug)]
pub(super) struct PublicFlags {
    /// For anybody, by this port or host of a --gateway
    #[arg(
        long,
        value_name = "PORT|HOST",
        requires = "gateway",
        conflicts_with_all = ["name", "ticket", "take_over"]
    )]
    public: Vec<Publication>,
    /// The gateway of --public: a name, an id or a ticket
    #[arg(long, value_name = "NAME|TICKET", requires = "public", hide_short_help = true)]
    gateway: Option<Peer>,
    /// Tell the local service where clients are, by the PROXY protocol, version 2
    #[arg(long, requires = "public", hide_short_help = true)]
    proxy_protocol: bool,
}

impl PublicFlags {
    pub(super) fn is_given(&self) -> bool {
        !self.public.is_empty()
    }
}

pub(super) async fn run(globals: &Globals, args: &Expose) -> Result<()> {
    files::raise_limit();
    let wish = Wish { config: args.paths.config(), ..Wish::default() };
    let serve = async |network: &Network| serve(globals, args, network).await;
    serving::until_stopped(globals, wish, None, serve).await
}

async fn serve(globals: &Globals, args: &Expose, network: &Network) -> Result<()> {
    let gateway = args.public.gateway.clone().context("no gateway is given")?;
    let _reporter = Reporter::start(network, About::new(COMMAND, Some(gateway.to_string())), globals.quiet)?;
    // It is never told to halt: what is published is not taken over.
    let halter = Halter::new();
    let service = Service {
        to: args.to.clone(),
        public: args.public.public.clone().into(),
        proxy_protocol: args.public.proxy_protocol,
        quiet: globals.quiet,
        tie: halter.tie(),
    };
    let mut ready: Option<Ready> = None;
    let mut pause = AGAIN.0;
    loop {
        let why = match begin(network, &gateway, &service.public).await {
            Ok((connection, offerings)) => {
                let shown = shown(&args.to, &service.public, &offerings);
                match ready {
                    None => tell(globals, args, network, &offerings, &shown)?,
                    Some(_) => output::note(globals.quiet, &shown),
                }
                ready.get_or_insert_with(|| Ready::tell(&shown));
                pause = AGAIN.0;
                service.serve(connection, offerings).await
            }
            Err(why) => why,
        };
        // What does not work at first is a mistake, or must be known.
        if ready.is_none() || is_final(&why) {
            return Err(why);
        }
        output::note(globals.quiet, format!("{gateway} is lost, trying again: {why:#}"));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}

/// Whether nothing is gained by asking again.
fn is_final(why: &anyhow::Error) -> bool {
    why.downcast_ref::<Failure>().is_some()
}

/// What a gateway says, as this program does.
fn said(error: PublishError) -> anyhow::Error {
    match error {
        PublishError::Refused(_) | PublishError::Older => {
            Failure::new(Failure::REFUSED, error.to_string()).into()
        }
        error => error.into(),
    }
}

/// Has the gateway publish everything.
async fn begin(
    network: &Network,
    gateway: &Peer,
    public: &[Publication],
) -> Result<(Connection, Vec<Offering>)> {
    let connection = network::connect(network, gateway).await?;
    let mut offerings = Vec::new();
    for what in public {
        let stream = connection.open_stream().await?;
        offerings.push(Offering::begin(stream, what).await.map_err(said)?);
    }
    Ok((connection, offerings))
}

fn shown(to: &str, public: &[Publication], offerings: &[Offering]) -> String {
    let places = public.iter().zip(offerings).map(|(what, offering)| match what {
        Publication::Port(_) => offering.at().to_owned(),
        what => what.to_string(),
    });
    format!("{to} is public as {}", places.collect::<Vec<_>>().join(", "))
}

fn tell(
    globals: &Globals,
    args: &Expose,
    network: &Network,
    offerings: &[Offering],
    shown: &str,
) -> Result<()> {
    if args.json {
        let at: Vec<&str> = offerings.iter().map(Offering::at).collect();
        return output::json(&json!({ "id": network.id().to_string(), "to": args.to, "public": at }));
    }
    output::note(globals.quiet, shown);
    Ok(())
}

/// What serves each client.
#[derive(Clone)]
struct Service {
    to: String,
    public: Arc<[Publication]>,
    proxy_protocol: bool,
    quiet: bool,
    tie: Tie<Halted>,
}

impl Service {
    /// Serves clients until something is published no more, and says why.
    async fn serve(&self, connection: Connection, mut offerings: Vec<Offering>) -> anyhow::Error {
        let ended = select_all(offerings.iter_mut().map(|offering| offering.ended().boxed()));
        tokio::pin!(ended);
        loop {
            tokio::select! {
                (error, ..) = &mut ended => return said(error),
                stream = connection.accept_stream() => match stream {
                    Ok(stream) => drop(tokio::spawn(FutureExt::boxed(self.clone().client(stream)))),
                    Err(error) => return error.into(),
                },
            }
        }
    }

    async fn client(self, stream: Stream) {
        if let Err(error) = self.pass(stream).await {
            tracing::info!(%error, "a client's connection broke");
        }
    }

    async fn pass(&self, mut stream: Stream) -> io::Result<()> {
        let arrival = within(WORDS, Arrival::read(&mut stream)).await?;
        if !self.public.contains(&arrival.to) {
            return decline(stream, &Answer::new(Status::NotAllowed, "this is not published here")).await;
        }
        let connected = within(TARGET_LIMIT, self.connect(&arrival)).await;
        let socket = match connected {
            Ok(socket) => socket,
            Err(error) => {
                output::note(self.quiet, format!("{} does not accept connections: {error}", self.to));
                return decline(stream, &Answer::of_io(&error)).await;
            }
        };
        tracing::info!(from = %arrival.from, to = %arrival.to, "a client");
        within(WORDS, stream.write_all(&Answer::new(Status::Connected, "").encode())).await?;
        Tunnel::new(LocalSocket::Tcp(socket), stream).run(&self.tie).await
    }

    async fn connect(&self, arrival: &Arrival) -> io::Result<TcpStream> {
        let mut socket = super::connect(&self.to, self.quiet).await?;
        if self.proxy_protocol {
            socket.write_all(&proxy_header(arrival.from, arrival.at)).await?;
        }
        Ok(socket)
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Tells the gateway why its client is not served.
async fn decline(mut stream: Stream, answer: &Answer) -> io::Result<()> {
    within(WORDS, stream.write_all(&answer.encode())).await?;
    stream.finish()
}

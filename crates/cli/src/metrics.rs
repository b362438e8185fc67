//! What a service has done, for those who gather figures: Prometheus' text format over HTTP.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use whimbrel_names::ServiceStats;
use whimbrel_proxy::{GatewayStats, HttpStats, NetworkTraffic, SocksStats};
use whimbrel_relay::RelayStats;
use whimbrel_transport::HandshakeStats;

use crate::failure::Failure;
use crate::web::{self, Answer, Answering};

/// Connections at once; further ones wait.
const CLIENTS: usize = 16;
/// A connection lasts no longer.
const LIMIT: Duration = Duration::from_secs(10);

/// How long an instance that was taken over may keep the place.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(10);
/// After a connection that could not be accepted: for want of descriptors the next one can't be either.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub(crate) struct Metrics(Option<AbortHandle>);

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Listens, if it is said where; where another instance `had` the place, waits until it is free.
///
/// # Errors
/// When the place is taken, or is none of this host's.
pub(crate) async fn listen(at: Option<SocketAddr>, had: bool) -> Result<Option<TcpListener>> {
    let Some(at) = at else { return Ok(None) };
    let start = Instant::now();
    loop {
        match TcpListener::bind(at).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if had && error.kind() == ErrorKind::AddrInUse && start.elapsed() < RELEASE_LIMIT => {
                tokio::time::sleep(RELEASE_PAUSE).await;
            }
            Err(error) => {
                return Err(Failure::usage(format!("cannot listen on --metrics {at}: {error}")));
            }
        }
    }
}

/// Answers `GET /metrics` with the `text` of the moment, if it listens. On loopback who asks by another name
/// than this host's own is refused: a web page whose name leads there could read the answer.
pub(crate) fn serve(
    listener: Option<TcpListener>,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> Metrics {
    let Some(listener) = listener else { return Metrics(None) };
    let is_here = listener.local_addr().is_ok_and(|at| at.ip().to_canonical().is_loopback());
    let answering = move |request: Request<Incoming>| {
        let is_for_this_host = !is_here || request.headers().get(HOST).is_none_or(names_this_host);
        let answer = if is_for_this_host { answer(&request, &text) } else { misdirected() };
        std::future::ready(answer).boxed()
    };
    let task = tokio::spawn(accept(listener, Arc::new(answering)).boxed());
    Metrics(Some(task.abort_handle()))
}

async fn accept(listener: TcpListener, answering: Answering) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let serving = tokio::time::timeout(LIMIT, web::serve(socket, answering.clone()));
        tokio::spawn(serving.map(|_| drop(place)).boxed());
    }
}

fn answer(request: &Request<Incoming>, text: &dyn Fn() -> String) -> Answer {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, text()),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "see /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
    };
    respond(status, body)
}

/// Whether a `Host` is `localhost` or an address: no page's name leads to these.
fn names_this_host(host: &HeaderValue) -> bool {
    let authority = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
    })
}

fn misdirected() -> Answer {
    let text = "on loopback figures are given by address or as localhost alone\n";
    respond(StatusCode::MISDIRECTED_REQUEST, text.to_owned())
}

fn respond(status: StatusCode, body: String) -> Answer {
    let mut response = Response::new(web::whole(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// One figure: whether it only grows, its name, what it is, and its value.
struct Figure(bool, &'static str, &'static str, u64);

fn text(figures: &[Figure]) -> String {
    let mut text = String::new();
    for Figure(grows, name, help, value) in figures {
        let kind = if *grows { "counter" } else { "gauge" };
        // To a string it cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text
}

/// A time that only grows.
fn seconds(name: &str, help: &str, time: Duration) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {}\n", time.as_secs_f64())
}

/// The figures of an endpoint, whatever it serves.
pub(crate) fn of_endpoint(stats: &HandshakeStats) -> String {
    text(&[
        Figure(true, "whimbrel_handshakes_total", "Handshakes of peers that came.", stats.done),
        Figure(true, "whimbrel_handshakes_failed_total", "Handshakes that failed.", stats.failed),
    ])
}

/// The figures of a name service.
pub(crate) fn of_names(stats: &ServiceStats) -> String {
    text(&[
        Figure(false, "whimbrel_names_connections", "Connections now.", stats.connections),
        Figure(true, "whimbrel_names_connections_total", "Connections accepted.", stats.connected),
        Figure(false, "whimbrel_names_watches", "Watches now.", stats.watches),
        Figure(false, "whimbrel_names_meetings", "Meetings now.", stats.meetings),
        Figure(true, "whimbrel_names_requests_total", "Requests.", stats.requests),
        Figure(true, "whimbrel_names_errors_total", "Requests answered with an error.", stats.refused),
        Figure(true, "whimbrel_names_published_total", "Records taken in.", stats.published),
        Figure(true, "whimbrel_names_lookups_total", "Lookups.", stats.lookups),
        Figure(true, "whimbrel_names_pushes_total", "Records pushed to watchers.", stats.pushes),
        Figure(true, "whimbrel_names_broken_total", "Peers that broke the protocol.", stats.broken),
    ])
}

/// The figures of an HTTP proxy, and what passed over each network.
pub(crate) fn of_http_proxy(stats: &HttpStats, networks: &[NetworkTraffic]) -> String {
    let counts = text(&[
        Figure(false, "whimbrel_proxy_connections", "Clients' connections now.", stats.connections),
        Figure(true, "whimbrel_proxy_requests_total", "Requests, CONNECT included.", stats.requests),
        Figure(true, "whimbrel_proxy_tunnels_total", "Tunnels.", stats.tunnels),
        Figure(
            true,
            "whimbrel_proxy_failed_total",
            "Requests answered with an error of the proxy.",
            stats.failed,
        ),
    ]);
    counts + &of_networks(networks)
}

/// The figures of a SOCKS proxy, and what passed over each network.
pub(crate) fn of_socks(stats: &SocksStats, networks: &[NetworkTraffic]) -> String {
    let counts = text(&[
        Figure(false, "whimbrel_socks_connections", "Programs' connections now.", stats.connections),
        Figure(true, "whimbrel_socks_connected_total", "Destinations reached.", stats.connected),
        Figure(true, "whimbrel_socks_failed_total", "Destinations not reached.", stats.failed),
    ]);
    counts + &of_networks(networks)
}

/// What passed between a proxy and servers.
fn of_networks(networks: &[NetworkTraffic]) -> String {
    let received = |network: &NetworkTraffic| network.received;
    let sent = |network: &NetworkTraffic| network.sent;
    by_network("whimbrel_proxy_received_bytes_total", "Bytes from servers.", networks, received)
        + &by_network("whimbrel_proxy_sent_bytes_total", "Bytes to servers.", networks, sent)
}

/// The figures of a gateway.
pub(crate) fn of_gateway(stats: &GatewayStats) -> String {
    text(&[
        Figure(false, "whimbrel_gateway_open", "Connections and requests for them now.", stats.open),
        Figure(false, "whimbrel_gateway_sessions", "Sessions now.", stats.sessions),
        Figure(true, "whimbrel_gateway_connected_total", "Connections to hosts made.", stats.connected),
        Figure(true, "whimbrel_gateway_declined_total", "Requests declined.", stats.declined),
    ])
}

/// A figure that only grows, of each network.
fn by_network(
    name: &str,
    help: &str,
    networks: &[NetworkTraffic],
    value: impl Fn(&NetworkTraffic) -> u64,
) -> String {
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
    for network in networks {
        text += &labelled(name, &network.network, value(network));
    }
    text
}

/// One network's line. Its name may have anything in it but spaces, colons and slashes.
fn labelled(name: &str, network: &str, value: u64) -> String {
    let label = network.replace('\\', "\\\\").replace('"', "\\\"");
    format!("{name}{{network=\"{label}\"}} {value}\n")
}

/// The figures of a relay.
pub(crate) fn of_relay(stats: &RelayStats) -> String {
    let waited = "Seconds that clients waited until they were spliced, together.";
    let lasted = "Seconds that ended splices lasted, together.";
    counts_of_relay(stats)
        + &seconds("whimbrel_relay_wait_seconds_total", waited, stats.wait_time)
        + &seconds("whimbrel_relay_splice_seconds_total", lasted, stats.splice_time)
}

fn counts_of_relay(stats: &RelayStats) -> String {
    let ended = stats.spliced.saturating_sub(stats.splices);
    text(&[
        Figure(true, "whimbrel_relay_servers_total", "Connections of servers accepted.", stats.servers),
        Figure(false, "whimbrel_relay_reservations", "Reservations now.", stats.reservations),
        Figure(false, "whimbrel_relay_spares", "Spares that wait for clients.", stats.spares),
        Figure(false, "whimbrel_relay_waiting", "Clients that wait for spares.", stats.waiting),
        Figure(false, "whimbrel_relay_splices", "Spliced connections now.", stats.splices),
        Figure(true, "whimbrel_relay_splices_total", "Connections spliced.", stats.spliced),
        Figure(true, "whimbrel_relay_splices_ended_total", "Spliced connections that have ended.", ended),
        Figure(false, "whimbrel_relay_flows", "Places that clients send QUIC from now.", stats.flows),
        Figure(true, "whimbrel_relay_flows_total", "Places that clients sent QUIC from.", stats.flowed),
        Figure(true, "whimbrel_relay_dropped_total", "Datagrams not forwarded.", stats.dropped),
        Figure(true, "whimbrel_relay_bytes_total", "Bytes passed on, both ways.", stats.bytes),
        Figure(true, "whimbrel_relay_clients_refused_total", "Clients turned away.", stats.clients_refused),
        Figure(true, "whimbrel_relay_spares_refused_total", "Spares turned away.", stats.spares_refused),
        Figure(
            true,
            "whimbrel_relay_reservations_refused_total",
            "Reservations refused.",
            stats.reservations_refused,
        ),
    ])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What is answered to who asks by this host.
    async fn ask(at: SocketAddr, what: &str, host: &str) -> String {
        let mut socket = tokio::net::TcpStream::connect(at).await.unwrap();
        let request = format!("GET {what} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn figures_are_read_over_http() {
        let listener = listen(Some("127.0.0.1:0".parse().unwrap()), false).await.unwrap().unwrap();
        let at = listener.local_addr().unwrap();
        assert!(listen(Some(at), false).await.is_err(), "it is taken");
        let _metrics = serve(Some(listener), || of_relay(&RelayStats::default()));
        let answer = ask(at, "/metrics", &at.to_string()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains("# TYPE whimbrel_relay_splices gauge\nwhimbrel_relay_splices 0\n"),
            "{answer}"
        );
        assert!(answer.contains("\nwhimbrel_relay_splice_seconds_total 0\n"), "{answer}");
        assert!(ask(at, "/", &at.to_string()).await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_page_whose_name_leads_to_loopback_reads_no_figures() {
        let listener = listen(Some("127.0.0.1:0".parse().unwrap()), false).await.unwrap().unwrap();
        let at = listener.local_addr().unwrap();
        let _metrics = serve(Some(listener), || of_relay(&RelayStats::default()));
        for host in ["127.0.0.1", "[::1]:9090", "LocalHost:9090", "10.0.0.1"] {
            let answer = ask(at, "/metrics", host).await;
            assert!(
                answer.starts_with("HTTP/1.1 200") && answer.contains("whimbrel_relay"),
                "{host}: {answer}"
            );
        }
        for host in
            ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "localhost.example", "a b", ""]
        {
            let answer = ask(at, "/metrics", host).await;
            assert!(answer.starts_with("HTTP/1.1 421") && !answer.contains("whimbrel"), "{host}: {answer}");
        }
    }

    #[test]
    fn each_network_has_its_line_and_no_name_of_one_breaks_out_of_it() {
        let text = by_network("whimbrel_x_total", "X.", &[], |_| 1);
        assert_eq!(text, "# HELP whimbrel_x_total X.\n# TYPE whimbrel_x_total counter\n");
        for (name, label) in
            [("wlan0", "wlan0"), ("a\"b\\", "a\\\"b\\\\"), ("other networks", "other networks")]
        {
            assert_eq!(labelled("x_total", name, 7), format!("x_total{{network=\"{label}\"}} 7\n"));
        }
    }

    /// Names of figures in a text, each once.
    fn named(text: &str) -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.len() > 9 && word.starts_with("whimbrel_")).map(str::to_owned).collect()
    }

    #[test]
    fn the_sample_board_shows_each_figure_and_no_other() {
        let board = include_str!("../../../docs/grafana.json");
        let parsed: serde_json::Value = serde_json::from_str(board).unwrap();
        let panels = parsed["panels"].as_array().unwrap();
        let asked = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let shown =
            named(&asked.map(|target| target["expr"].as_str().unwrap()).collect::<Vec<_>>().join(" "));
        let there = of_names(&ServiceStats::default()) + &of_relay(&RelayStats::default());
        let there = named(&(there + &of_endpoint(&HandshakeStats::default())));
        assert!(there.len() > 20, "{there:?}");
        assert_eq!(shown, there);
    }
}

//! Clients' connections.

use super::Proxy;
use super::answer::answer;
use super::speaking::{self, Limits};
use super::tunnel::{Agreed, Slot};
use super::watched::{Traffic, Watched};
use futures_util::FutureExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The largest head of a request; what is read and written at once.
const BUFFER: usize = 64 << 10;
/// When no socket can be opened, those that are open have so long to end.
const NO_SOCKET: Duration = Duration::from_millis(100);
/// How often idle connections to servers are looked through.
const TIDY: Duration = Duration::from_secs(15);

/// Serves until it is dropped.
pub(super) async fn serve(proxy: &Arc<Proxy>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(proxy.settings.connections));
    let mut clients = JoinSet::new();
    let mut tidy = tokio::time::interval(TIDY);
    loop {
        let next = async {
            // It is closed never.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (place, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    let proxy = Arc::clone(proxy);
                    clients.spawn(FutureExt::boxed(async move {
                        client(&proxy, stream).await;
                        drop(place);
                    }));
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection is accepted");
                    tokio::time::sleep(NO_SOCKET).await;
                }
            },
            Some(_) = clients.join_next() => {}
            _ = tidy.tick() => proxy.tidy(),
        }
    }
}

async fn client(proxy: &Arc<Proxy>, stream: TcpStream) {
    proxy.counts.connections.fetch_add(1, Ordering::Relaxed);
    let _leaving = Leaving(proxy);
    // What is passed on is not held back until there is more of it.
    let _ = stream.set_nodelay(true);
    let traffic = Arc::new(Traffic::default());
    tokio::select! {
        () = speak(proxy, stream, &traffic) => {}
        () = traffic.rests(proxy.settings.idle_limit, proxy.settings.tunnel_limit) => {
            tracing::debug!("a client's connection was idle for too long");
        }
    }
}

/// Speaks HTTP, and then whatever was agreed on.
async fn speak(proxy: &Arc<Proxy>, stream: TcpStream, traffic: &Arc<Traffic>) {
    let slot = Arc::new(Slot::default());
    let limits = Limits { head: proxy.settings.request_limit, buffer: BUFFER };
    let answering = |request| answer(Arc::clone(proxy), Arc::clone(&slot), Box::new(request)).boxed();
    if proxy.intercepting.is_some() {
        traffic.note_ends(&stream);
    }
    let watched = Watched::socket(stream, Arc::clone(traffic));
    speaking::speak(watched, traffic, limits, &answering).await;
    // On the heap, as answers: a connection that only waits has no need of its memory.
    let (to, passed) = match (slot.take(), &proxy.intercepting) {
        (Some(Agreed::Tunnel(tunnel)), _) => (tunnel.to().clone(), Box::pin(tunnel.run(traffic)).await),
        (Some(Agreed::Asked(asked)), Some(intercepting)) => {
            (asked.to.clone(), Box::pin(intercepting.serve(proxy, asked, traffic)).await)
        }
        _ => return,
    };
    if let Some(passed) = passed {
        proxy.tunnels.put(&to, passed.after(proxy.tunnels.of(&to)));
    }
}

/// Counts a connection as gone when it is dropped.
struct Leaving<'a>(&'a Proxy);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

//! What a gateway publishes of its peers: `whimbrel help publishing`.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use clap::Args;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use whimbrel_proxy::{Publications, PublishRule, PublishRules, PublishSettings};

use crate::failure::Failure;

/// Who may publish what, and where clients come. The help has no room for them: they have a topic.
#[derive(Args, Clone, Debug)]
pub(super) struct PublishFlags {
    /// A peer's server for anybody: HOST=ID, *.DOMAIN=ID, [ADDR:]PORT[-PORT]=ID; repeatable
    #[arg(long, value_name = "WHAT=ID", hide_short_help = true)]
    publish: Vec<PublishRule>,
    /// Where clients of published hosts come with TLS, as 0.0.0.0:443; repeatable
    #[arg(long, value_name = "ADDR:PORT", requires = "publish", hide_short_help = true)]
    public_tls: Vec<SocketAddr>,
    /// Where clients of published hosts come with plain HTTP, as 0.0.0.0:80; repeatable
    #[arg(long, value_name = "ADDR:PORT", requires = "publish", hide_short_help = true)]
    public_http: Vec<SocketAddr>,
}

/// What is published, and the sockets to which clients come. They close with it.
pub(super) struct Publishing {
    pub(super) publications: Publications,
    /// Where they listen.
    pub(super) tls: Vec<SocketAddr>,
    pub(super) http: Vec<SocketAddr>,
    _doors: JoinSet<()>,
}

impl PublishFlags {
    /// Servers may be published.
    pub(super) fn is_used(&self) -> bool {
        !self.publish.is_empty()
    }

    /// Begins to listen for clients.
    ///
    /// # Errors
    /// Where rules contradict each other or nobody could come, and when an address is taken.
    pub(super) async fn start(&self, settings: PublishSettings) -> Result<Publishing> {
        let rules = PublishRules::new(self.publish.clone());
        let rules = rules.map_err(|error| Failure::usage(format!("--publish: {error}")))?;
        let has_doors = !self.public_tls.is_empty() || !self.public_http.is_empty();
        if rules.has_hosts() && !has_doors {
            return Err(Failure::usage(
                "nobody would reach the hosts of --publish: say where clients come, with --public-tls \
                 ADDR:PORT or --public-http ADDR:PORT",
            ));
        }
        let publications = Publications::new(rules, settings);
        let (mut doors, mut tls, mut http) = (JoinSet::new(), Vec::new(), Vec::new());
        for at in &self.public_tls {
            let (listener, publications) = (listen(*at, &mut tls).await?, publications.clone());
            doors.spawn(FutureExt::boxed(async move { publications.serve_tls(listener).await }));
        }
        for at in &self.public_http {
            let (listener, publications) = (listen(*at, &mut http).await?, publications.clone());
            doors.spawn(FutureExt::boxed(async move { publications.serve_http(listener).await }));
        }
        Ok(Publishing { publications, tls, http, _doors: doors })
    }
}

/// Listens, and notes where in fact.
async fn listen(at: SocketAddr, all: &mut Vec<SocketAddr>) -> Result<TcpListener> {
    let listener = TcpListener::bind(at).await.with_context(|| {
        format!("cannot listen on {at} for clients; choose another port, or stop who uses it")
    })?;
    all.push(listener.local_addr().context("cannot tell where it listens")?);
    Ok(listener)
}

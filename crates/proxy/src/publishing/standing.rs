//! One publication at a gateway: it stands for as long as the stream on which it was asked for is open.

use super::desk::{Granted, Publications, Unpublished};
use super::door::Door;
use crate::{Answer, Publication, Status};
use futures_util::FutureExt;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use whimbrel_transport::Stream;

/// For a last word to be taken.
const WORD: Duration = Duration::from_secs(5);

impl Publications {
    /// Publishes something for the peer of a stream, which is told, until that stream ends.
    ///
    /// # Errors
    /// Why it is not. The stream is given back then.
    pub(crate) async fn publish(
        &self,
        mut stream: Stream,
        what: Publication,
    ) -> Result<(), (Stream, Unpublished)> {
        let granted = match self.grant(what, stream.connection()).await {
            Ok(granted) => granted,
            Err(why) => return Err((stream, why)),
        };
        let at = granted.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let text = at.map_or_else(|| granted.what.to_string(), |at| at.to_string());
        let publications = self.clone();
        tokio::spawn(FutureExt::boxed(async move {
            let words = Answer::new(Status::Connected, &text).encode();
            let (what, number) = (granted.what.clone(), granted.number);
            if let Ok(Ok(())) = tokio::time::timeout(WORD, stream.write_all(&words)).await {
                tracing::info!(peer = %stream.peer_id().short(), %what, "published");
                publications.hold(&mut stream, granted).await;
                tracing::info!(peer = %stream.peer_id().short(), %what, "published no more");
            }
            publications.ended(&what, number);
        }));
        Ok(())
    }

    async fn hold(&self, stream: &mut Stream, granted: Granted) {
        let Granted { what, listener, replaced, _place, .. } = granted;
        let is_replaced = {
            let mut byte = [0; 1];
            let serving = self.serve_port(listener.as_ref(), &what);
            tokio::select! {
                // Nothing is said on it: whatever comes ends it.
                _ = stream.read(&mut byte) => None,
                told = replaced => Some(told),
                () = serving => None,
            }
        };
        drop(listener);
        if let Some(told) = is_replaced {
            if let Ok(free) = told {
                // The one that waits may have given up.
                let _ = free.send(());
            }
            let why = format!("{what} is now published by another program with this key");
            let words = Answer::new(Status::NotAllowed, &why).encode();
            let _ = tokio::time::timeout(WORD, stream.write_all(&words)).await;
        }
    }

    async fn serve_port(&self, listener: Option<&TcpListener>, what: &Publication) {
        match listener {
            Some(listener) => match self.accept(listener, &Door::Port(what.clone())).await {},
            None => std::future::pending().await,
        }
    }
}

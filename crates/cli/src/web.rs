//! Web servers of the program's own: of figures, and of the demo's file. One kind of service for all, because
//! hyper's code comes once for each kind, 20 KB of the program.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A body of any kind.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
/// What is answered.
pub(crate) type Answer = Response<Body>;
/// Answers requests.
pub(crate) type Answering = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// A body with these bytes.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Answers on a connection until it ends.
pub(crate) async fn serve(socket: TcpStream, answering: Answering) {
    let service = service_fn(move |request| answering(request).map(Ok::<_, Infallible>));
    if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await {
        tracing::debug!(%error, "a client's connection ended");
    }
}

//! The rest of an object of HTTPS that came at another device: its server is asked for it, and a program of
//! this device that asks anew gets it.

use super::Proxy;
use super::body::Body;
use super::exchange::{Outgoing, exchange};
use super::passing;
use super::problem::Problem;
use super::secured::Secured;
use super::settings::HttpSettings;
use super::web_object::{Judged, NoObject, WebObject};
use crate::intercept::Servers;
use crate::sessions::Rest;
use crate::{InterceptError, NoRest, Upstream};
use http_body_util::BodyExt as _;
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use whimbrel_access::Intents;

/// For a server to be reached, and to answer. The device that has the object waits meanwhile.
const LIMIT: Duration = Duration::from_secs(20);
/// Nothing comes for so long: it is asked again.
const STALL: Duration = Duration::from_secs(30);

/// Servers of HTTPS that are asked for the rest of objects.
pub struct WebOrigins {
    proxy: Proxy,
}

/// Why there is no rest of an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoWebRest {
    /// It cannot be asked for.
    #[error("the server cannot be asked for the rest: {0}")]
    Unreachable(String),
    /// There are no parts.
    #[error("the server gives no parts of this, so that the rest of it cannot be had")]
    Parts,
    /// There is another version.
    #[error("what the server has there now is not what came before, or it does not say so")]
    Changed,
    /// The server refuses.
    #[error("the server refuses the rest to this device: {0}")]
    Refused(StatusCode),
    /// The program does.
    #[error(transparent)]
    Program(#[from] NoRest),
}

impl From<NoObject> for NoWebRest {
    fn from(error: NoObject) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<Problem> for NoWebRest {
    fn from(problem: Problem) -> Self {
        Self::Unreachable(problem.into_text())
    }
}

impl NoWebRest {
    /// What the program is told.
    pub fn answer(&self) -> Vec<u8> {
        match self {
            Self::Program(why) => why.answer(),
            other => {
                let text = format!("{other}\n");
                let head = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n";
                format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).into_bytes()
            }
        }
    }
}

impl WebOrigins {
    /// Servers that are reached in this way, and verified by the certificates of authorities in this PEM
    /// file; without one, by the system's.
    ///
    /// # Errors
    /// [`InterceptError::NoRoots`] and [`InterceptError::File`] where there are none.
    pub fn new(upstream: Arc<dyn Upstream>, upstream_ca: Option<&Path>) -> Result<Self, InterceptError> {
        let secured = Arc::new(Secured::new(Servers::new(upstream_ca)?));
        let plain = Proxy::new(Arc::clone(&upstream), HttpSettings::default());
        Ok(Self { proxy: plain.over_tls(upstream, secured) })
    }

    /// Asks for the rest of an object, for a program that said this. Nothing is said to the program.
    ///
    /// # Errors
    /// When the server does not give it, or the program asks for something else.
    // Made here, and not inlined: async code of this crate that another one polls is compiled there once
    // more.
    #[inline(never)]
    pub async fn rest(&self, object: WebObject, request: &[u8]) -> Result<WebRest<'_>, NoWebRest> {
        let answer = Box::pin(self.ask(&object)).await?;
        let head = told(&object, answer.headers(), request)?;
        Ok(WebRest { origins: self, object, head, body: answer.into_body() })
    }

    async fn ask(&self, object: &WebObject) -> Result<Response<Body>, NoWebRest> {
        let asking = tokio::time::timeout(LIMIT, self.exchange(object));
        asking.await.unwrap_or_else(|_| Err(NoWebRest::Unreachable("it does not answer in time".to_owned())))
    }

    async fn exchange(&self, object: &WebObject) -> Result<Response<Body>, NoWebRest> {
        let (to, mut request, origins) = (object.to()?, object.request()?, &self.proxy.origins);
        let version = request.version();
        self.proxy.pseudonym.add_to(request.headers_mut(), version);
        let intents = Intents::default();
        let decided = origins.decide(&to, intents, false).await.map_err(Problem::from)?;
        let outgoing = Outgoing::of(request);
        let (answer, lease) = exchange(origins, &to, intents, (decided, None), outgoing, LIMIT).await?;
        match object.judge(answer.status(), answer.headers())? {
            Judged::Rest => {}
            Judged::Whole => return Err(NoWebRest::Parts),
            Judged::Changed => return Err(NoWebRest::Changed),
            Judged::Other(status) => return Err(NoWebRest::Refused(status)),
        }
        Ok(passing::pass(&self.proxy.pseudonym, &Method::GET, answer, lease, None)?)
    }
}

/// What the program gets before the rest.
fn told(object: &WebObject, headers: &HeaderMap, request: &[u8]) -> Result<Vec<u8>, NoRest> {
    let (first, done) = object.first_head(headers);
    let offset = first.len() as u64 + done;
    Rest::new(&first, offset, request).map(Rest::into_head)
}

/// The rest of an object, which its server has begun to send.
pub struct WebRest<'a> {
    origins: &'a WebOrigins,
    object: WebObject,
    head: Vec<u8>,
    body: Body,
}

impl WebRest<'_> {
    /// Gives it to the program. The server is asked again for what does not come.
    ///
    /// # Errors
    /// When the program is gone, or the rest cannot be had.
    pub async fn give(mut self, program: &mut (impl AsyncWrite + Unpin + Send)) -> io::Result<()> {
        program.write_all(&self.head).await?;
        let (mut object, mut is_left) = (self.object, true);
        // What has come since it was asked for the last time.
        let mut came = 0;
        while is_left {
            let why = match tokio::time::timeout(STALL, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let Ok(mut bytes) = frame.into_data() else { continue };
                    // No more than was asked for, whatever comes.
                    bytes.truncate(usize::try_from(object.left()).unwrap_or(usize::MAX));
                    program.write_all(&bytes).await?;
                    came += bytes.len() as u64;
                    is_left = object.advance(bytes.len() as u64);
                    continue;
                }
                Ok(Some(Err(why))) => why.to_string(),
                Ok(None) => "the answer ended before its end".to_owned(),
                Err(_) => "nothing comes any more".to_owned(),
            };
            tracing::info!(%why, ?object, "the rest of an object breaks off");
            if came == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
            }
            let answer = Box::pin(self.origins.ask(&object)).await.map_err(io::Error::other)?;
            (self.body, came) = (answer.into_body(), 0);
        }
        program.flush().await
    }
}

//! The first bytes of an object, whose head tells how many there are: they are all, or the rest is fetched
//! the way that the policy says, beside them or behind them.

use super::{Download, First, over};
use crate::http::body::Body;
use crate::http::budget::Share;
use crate::http::origins::Lease;
use crate::http::problem::Problem;
use crate::http::rooms::{self, Room};
use crate::http::speaker::Coming;
use crate::http::validator::{Span, Validator};
use crate::http::worker::Begun;
use crate::http::{Proxy, fields, passing};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_LENGTH, SET_COOKIE};
use hyper::http::response::Parts;
use hyper::{Method, Response, StatusCode};
use std::sync::Arc;
use whimbrel_access::Intents;

/// The first part may take so many times what a network may be silent for: a slow one sends it for seconds.
const FIRST_PATIENCE: u32 = 4;

/// Bytes that have a share of the memory until they are gone.
struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Download {
    /// The head of the first bytes is there: they are all, or the rest comes as the policy says.
    pub(super) async fn first_part(
        self: Box<Self>,
        answer: Response<Coming>,
        lease: Lease,
        asked: First,
        room: Option<Room>,
    ) -> Result<Response<Body>, Problem> {
        let (head, body) = answer.into_parts();
        let length = fields::check_answer(&head.headers)?;
        let span = Span::of(&head.headers)
            .filter(|span| span.first == 0 && span.len() <= asked.bytes)
            .filter(|span| length.is_none_or(|length| length == span.len()));
        let validator = Validator::of(&head.headers);
        let usable = span.filter(|span| span.len() == span.total || validator.is_some());
        let Some(span) = usable else {
            // What cannot be put together is asked for as if nothing had been.
            self.proxy.without_ranges.put(&self.to, ());
            drop((body, lease, room));
            return self.whole_after_all().await;
        };
        self.proxy.sizes.learn(&self.to, span.total);
        self.counts_at_least(span.len(), &lease);
        let is_all = span.len() == span.total;
        match validator {
            Some(validator) if is_all && length.is_some() && asked.share.is_some() => {
                self.has_begun(&lease);
                self.pass_all((head, body), lease, validator, span.total)
            }
            // Not where the other request has brought the object already, nor where the answer does not say
            // how long it is: if it ends early, the object is asked for whole.
            Some(validator) if !is_all && length.is_some() && !self.is_over() => {
                self.has_begun(&lease);
                // All of it has a share of its own.
                drop(asked);
                let begun = Begun { body, lease, room, length: span.len() };
                self.go_on(head, validator, span.total, begun).await
            }
            validator => self.read((head, body), (span, validator), lease, (asked.share, room)).await,
        }
    }

    /// The rest is asked for while the first bytes come, if the policy wants it over another connection, and
    /// else behind them.
    async fn go_on(
        self: Box<Self>,
        head: Parts,
        validator: Validator,
        total: u64,
        mut begun: Begun,
    ) -> Result<Response<Body>, Problem> {
        let may_split = !head.headers.contains_key(SET_COOKIE);
        if fields::authenticates_the_connection(&head.headers) {
            begun.lease.line().make_private();
        }
        let (length, lease) = (begun.length, &begun.lease);
        let left = Intents::receive(total - length);
        let decided = self.proxy.origins.decide_behind(lease, length, left, may_split).await;
        let proxy = Arc::clone(&self.proxy);
        // Where there is no answer it goes on as it began.
        let decided = decided.unwrap_or_default();
        let fetching = self.object(validator, total, may_split).fetch_behind(begun, decided);
        let head = whole_head(&proxy, head);
        Ok(Response::from_parts(head, Body::joined(Bytes::new(), fetching, total)))
    }

    /// Reads the first bytes. If they are not all, the rest is fetched behind them.
    async fn read(
        self: Box<Self>,
        (head, body): (Parts, Coming),
        (span, validator): (Span, Option<Validator>),
        mut lease: Lease,
        (share, room): (Option<Share>, Option<Room>),
    ) -> Result<Response<Body>, Problem> {
        let Some(first) = self.read_first(body, span.len(), &lease, room).await else {
            lease.line().leave();
            drop(lease);
            return self.whole_after_all().await;
        };
        self.has_begun(&lease);
        let may_split = !head.headers.contains_key(SET_COOKIE);
        if fields::authenticates_the_connection(&head.headers) {
            lease.line().make_private();
        }
        lease.release();
        if self.is_over() {
            return Err(over());
        }
        let first = match share {
            Some(share) => Bytes::from_owner(Held { bytes: first, _share: share }),
            None => first,
        };
        let head = whole_head(&self.proxy, head);
        let left = span.total - span.len();
        let body = match validator.filter(|_| left > 0) {
            Some(validator) => {
                let decided = self.proxy.origins.decide(&self.to, Intents::receive(left), may_split).await?;
                let object = self.object(validator, span.total, may_split);
                Body::joined(first, object.fetch(span.len(), Some(decided)), span.total)
            }
            None => Body::of(first),
        };
        Ok(Response::from_parts(head, body))
    }

    /// More was asked for than the first step, and it is all that there is: nobody waits for the last byte of
    /// it, and what breaks is asked for again.
    fn pass_all(
        self: Box<Self>,
        (head, body): (Parts, Coming),
        lease: Lease,
        validator: Validator,
        total: u64,
    ) -> Result<Response<Body>, Problem> {
        let may_split = !head.headers.contains_key(SET_COOKIE);
        let proxy = Arc::clone(&self.proxy);
        let object = self.object(validator, total, may_split);
        let answer = Response::from_parts(without_the_part(head), body);
        passing::pass(&proxy.pseudonym, &Method::GET, answer, lease, Some((object, None)))
    }

    /// Reads exactly so many bytes. `None`: they did not come.
    async fn read_first(
        &self,
        mut body: Coming,
        length: u64,
        lease: &Lease,
        mut room: Option<Room>,
    ) -> Option<Bytes> {
        let length = usize::try_from(length).ok()?;
        let mut first = BytesMut::with_capacity(length);
        let reading = async {
            while let Some(frame) = rooms::while_it_comes(&mut room, body.frame()).await {
                let Ok(bytes) = frame.ok()?.into_data() else { continue };
                lease.moved();
                room.iter_mut().for_each(|room| room.came(bytes.len() as u64));
                if first.len() + bytes.len() > length {
                    return None;
                }
                first.extend_from_slice(&bytes);
            }
            (first.len() == length).then_some(first)
        };
        let read = tokio::time::timeout(self.proxy.settings.stall * FIRST_PATIENCE, reading).await;
        read.ok().flatten().map(BytesMut::freeze)
    }
}

/// The head of the whole object for the client, made of that of its first bytes.
fn whole_head(proxy: &Proxy, head: Parts) -> Parts {
    let mut head = without_the_part(head);
    passing::prepare(&proxy.pseudonym, &mut head);
    head.headers.remove(CONTENT_LENGTH);
    head
}

/// What does not tell any more that it is of a part.
fn without_the_part(mut head: Parts) -> Parts {
    head.status = StatusCode::OK;
    // Else the server's words for 206 would stand beside 200.
    head.extensions.clear();
    fields::remove_of_the_part(&mut head.headers);
    head
}

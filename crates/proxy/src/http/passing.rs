//! Answers on their way to the client.

use super::body::Body;
use super::fields;
use super::late::Late;
use super::object::Object;
use super::origins::Lease;
use super::problem::Problem;
use super::pseudonym::Pseudonym;
use super::speaker::Coming;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Method, Response, StatusCode, Version};

/// Passes an answer on. `rest` is how the rest of it can be had if the connection breaks, and what looks for
/// networks that may carry it too.
///
/// # Errors
/// When it could be read in more than one way.
pub(super) fn pass(
    pseudonym: &Pseudonym,
    method: &Method,
    answer: Response<Coming>,
    lease: Lease,
    rest: Option<(Object, Option<Late>)>,
) -> Result<Response<Body>, Problem> {
    let (mut head, body) = answer.into_parts();
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Problem::gateway("the server changes to a protocol that nobody asked for"));
    }
    let length = fields::check_answer(&head.headers)?;
    let mut lease = lease;
    if fields::authenticates_the_connection(&head.headers) {
        lease.line().make_private();
    }
    // Before anything is added, so that there is room for it.
    head.headers.remove(CONTENT_LENGTH);
    prepare(pseudonym, &mut head);
    let has_no_body = *method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    if let Some(length) = length.filter(|_| has_no_body) {
        // Of what is not sent. Else the body says how long it is.
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(Response::from_parts(head, Body::passing(body, lease, rest)))
}

/// Makes the head of a server's answer one of ours.
pub(super) fn prepare(pseudonym: &Pseudonym, head: &mut Parts) {
    fields::remove_of_the_connection(&mut head.headers);
    pseudonym.add_to(&mut head.headers, head.version);
    head.version = Version::HTTP_11;
}

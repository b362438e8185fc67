#![allow(clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;

use whimbrel_base::SecretKey;

use super::*;
use crate::readers::{MAX_READERS, Reader};

fn name() -> impl Strategy<Value = Name> {
    "([a-z][a-z0-9]{0,5}\\.){0,2}[a-z]{1,9}@[a-z]{1,9}".prop_map(|text| text.parse().unwrap())
}

fn domain() -> impl Strategy<Value = Option<Domain>> {
    proptest::option::of(name().prop_map(|name| name.domain().parse().unwrap()))
}

fn readers() -> impl Strategy<Value = Readers> {
    let key = any::<u8>().prop_map(|seed| Reader::Key(SecretKey::from_bytes(&[seed; 32]).id()));
    let reader = prop_oneof![key, name().prop_map(Reader::User)];
    proptest::option::of(vec(reader, 0..=MAX_READERS))
        .prop_map(|readers| readers.map_or(Readers::Public, Readers::Only))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

fn id() -> impl Strategy<Value = ProposalId> {
    any::<[u8; 32]>().prop_map(ProposalId::from_bytes)
}

fn proposed() -> impl Strategy<Value = Proposed> {
    (bytes(), proptest::option::of(bytes())).prop_map(|(proposal, decision)| Proposed { proposal, decision })
}

fn left() -> impl Strategy<Value = LeftBehind> {
    (any::<(u64, [u8; 32], u32)>(), bytes()).prop_map(|((number, by, seconds), batch)| {
        let by = EndpointId::from_bytes(&by);
        LeftBehind { number, by, seconds, batch }
    })
}

fn living() -> impl Strategy<Value = Living> {
    (bytes(), any::<u32>()).prop_map(|(record, seconds)| Living { record, seconds })
}

fn request() -> impl Strategy<Value = Numbered> {
    let request = prop_oneof![
        bytes().prop_map(|record| Request::Publish { record }),
        bytes().prop_map(|record| Request::Revoke { record }),
        name().prop_map(|name| Request::Lookup { name }),
        (name(), any::<Option<u64>>()).prop_map(|(name, after)| Request::Watch { name, after }),
        any::<u64>().prop_map(|watch| Request::Unwatch { watch }),
        vec(name(), 0..=MAX_HEARTBEAT_NAMES).prop_map(|names| Request::Heartbeat { names }),
        any::<Option<u16>>().prop_map(|slot| Request::Meet { slot }),
        any::<[u8; 32]>().prop_map(|seed| Request::Find { id: SecretKey::from_bytes(&seed).id() }),
        ".{0,50}".prop_map(|code| Request::Redeem { code }),
        bytes().prop_map(|delegation| Request::Renew { delegation }),
        name().prop_map(|name| Request::Renewed { name }),
        name().prop_map(|name| Request::Vouch { domain: name.domain().parse().unwrap() }),
        bytes().prop_map(|proposal| Request::Propose { proposal }),
        bytes().prop_map(|decision| Request::Decide { decision }),
        (proptest::option::of(bytes()), proptest::option::of(id()))
            .prop_map(|(word, after)| Request::Proposals { word, after }),
        (id(), proptest::option::of(bytes()))
            .prop_map(|(proposal, word)| Request::Withdraw { proposal, word }),
        (name(), proptest::option::of(name())).prop_map(|(user, after)| Request::Devices { user, after }),
        (name(), proptest::option::of(".{0,50}")).prop_map(|(user, code)| Request::Mail { user, code }),
        proptest::option::of(bytes()).prop_map(|word| Request::Follow { word }),
        bytes().prop_map(|appointment| Request::Appoint { appointment }),
        name().prop_map(|name| Request::Appointed { name }),
        (proptest::option::of(bytes()), bytes()).prop_map(|(word, batch)| Request::Leave { word, batch }),
        (proptest::option::of(bytes()), any::<u64>())
            .prop_map(|(word, after)| Request::Fetch { word, after }),
        (bytes(), readers()).prop_map(|(record, readers)| Request::Register { record, readers }),
        (domain(), any::<(u16, u32)>()).prop_map(|(domain, (uses, seconds))| Request::Invite {
            domain,
            uses,
            seconds
        }),
    ];
    (any::<u64>(), request).prop_map(|(number, request)| Numbered { number, request })
}

fn reply() -> impl Strategy<Value = Reply> {
    let response = prop_oneof![
        (any::<u16>(), ".{0,50}").prop_map(|(code, message)| Response::Error { code, message }),
        any::<u32>().prop_map(|seconds| Response::Accepted { seconds }),
        (bytes(), any::<u32>()).prop_map(|(record, seconds)| Response::Record { record, seconds }),
        Just(Response::Watching),
        Just(Response::Unwatched),
        vec(any::<u16>(), 0..=MAX_HEARTBEAT_NAMES).prop_map(|codes| Response::Heard { codes }),
        any::<(u16, u16)>().prop_map(|(slot, seconds)| Response::Meeting { slot, seconds }),
        domain().prop_map(|domain| Response::Admitted { domain }),
        ".{0,50}".prop_map(|code| Response::Invited { code }),
        any::<(u32, u32)>().prop_map(|(seconds, lease)| Response::Registered { seconds, lease }),
        bytes().prop_map(|delegation| Response::Delegation { delegation }),
        bytes().prop_map(|voucher| Response::Voucher { voucher }),
        (vec(proposed(), 0..8), any::<bool>())
            .prop_map(|(proposals, more)| Response::Proposals { proposals, more }),
        (vec(living(), 0..8), proptest::option::of(name()))
            .prop_map(|(records, more)| Response::Devices { records, more }),
        bytes().prop_map(|appointment| Response::Appointment { appointment }),
        (vec(left(), 0..8), any::<bool>()).prop_map(|(batches, more)| Response::Batches { batches, more }),
    ];
    prop_oneof![
        (any::<u64>(), response).prop_map(|(request, response)| Reply::Response { request, response }),
        (any::<u64>(), bytes()).prop_map(|(watch, record)| Reply::Update { watch, record }),
        any::<u64>().prop_map(|watch| Reply::News { watch }),
    ]
}

/// All messages of a stream that comes in pieces of the given sizes.
fn decode<M: Message>(
    stream: &[u8],
    mut sizes: impl Iterator<Item = usize>,
) -> Result<Vec<M>, ProtocolError> {
    let (mut decoder, mut messages, mut rest) = (Decoder::new(), Vec::new(), stream);
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(1).clamp(1, rest.len());
        decoder.push(&rest[..size]);
        rest = &rest[size..];
        while let Some(message) = decoder.next_message()? {
            messages.push(message);
        }
    }
    assert!(decoder.is_empty());
    Ok(messages)
}

proptest! {
    #[test]
    fn requests_round_trip(sent in vec(request(), 0..8), sizes in vec(1..200usize, 1..20)) {
        let stream: Vec<u8> = sent.iter().flat_map(|message| encode(message).unwrap()).collect();
        prop_assert_eq!(decode(&stream, sizes.into_iter().cycle()), Ok(sent));
    }

    #[test]
    fn replies_round_trip(sent in vec(reply(), 0..8), sizes in vec(1..200usize, 1..20)) {
        let stream: Vec<u8> = sent.iter().flat_map(|message| encode(message).unwrap()).collect();
        prop_assert_eq!(decode(&stream, sizes.into_iter().cycle()), Ok(sent));
    }

    #[test]
    fn any_stream_is_survived(stream in vec(any::<u8>(), 0..200)) {
        let mut decoder = Decoder::<Numbered>::new();
        decoder.push(&stream);
        while let Ok(Some(_)) = decoder.next_message() {}
    }

    /// As above, but past the frame.
    #[test]
    fn any_content_is_survived(content in vec(any::<u8>(), 0..100)) {
        let mut stream = (content.len() as u32 + 1).to_be_bytes().to_vec();
        stream.push(1);
        stream.extend(&content);
        let mut requests = Decoder::<Numbered>::new();
        requests.push(&stream);
        let _ = requests.next_message();
        let mut replies = Decoder::<Reply>::new();
        replies.push(&stream);
        let _ = replies.next_message();
    }
}

/// If this fails, older programs don't understand this one.
#[test]
fn the_bytes_of_messages() {
    let numbered = |number, request| encode(&Numbered { number, request }).unwrap();
    let name: Name = "a@b".parse().unwrap();
    let record = vec![7, 8];
    let of_user = Readers::Only(vec![Reader::User(name.clone())]);
    let cases = [
        (numbered(1, Request::Publish { record: record.clone() }), &[1, 1, 0, 2, 7, 8][..]),
        (numbered(2, Request::Revoke { record: record.clone() }), &[1, 2, 1, 2, 7, 8]),
        (numbered(3, Request::Lookup { name: name.clone() }), b"\x01\x03\x02\x03a@b"),
        (
            numbered(300, Request::Watch { name: name.clone(), after: Some(5) }),
            b"\x01\xac\x02\x03\x03a@b\x01\x05",
        ),
        (numbered(5, Request::Unwatch { watch: 4 }), &[1, 5, 4, 4]),
        (numbered(6, Request::Heartbeat { names: vec![name] }), b"\x01\x06\x05\x01\x03a@b"),
        (numbered(0, Request::Meet { slot: None }), &[1, 0, 6, 0]),
        (numbered(0, Request::Meet { slot: Some(300) }), &[1, 0, 6, 1, 0xac, 2]),
        (numbered(1, Request::Redeem { code: "yb".into() }), b"\x01\x01\x07\x02yb"),
        (
            numbered(1, Request::Invite { domain: "b".parse().ok(), uses: 2, seconds: 3 }),
            b"\x01\x01\x08\x01\x01b\x02\x03",
        ),
        (
            numbered(1, Request::Register { record: record.clone(), readers: Readers::Public }),
            &[1, 1, 9, 2, 7, 8, 0],
        ),
        (
            numbered(1, Request::Register { record: record.clone(), readers: of_user }),
            b"\x01\x01\x09\x02\x07\x08\x01\x01\x01\x03a@b",
        ),
        (numbered(0, Request::Follow { word: None }), &[1, 0, 20, 0]),
        (numbered(0, Request::Follow { word: Some(vec![7, 8]) }), &[1, 0, 20, 1, 2, 7, 8]),
        (numbered(1, Request::Appoint { appointment: vec![7, 8] }), &[1, 1, 21, 2, 7, 8]),
        (numbered(1, Request::Appointed { name: "a@b".parse().unwrap() }), b"\x01\x01\x16\x03a@b"),
        (numbered(1, Request::Leave { word: None, batch: vec![7, 8] }), &[1, 1, 23, 0, 2, 7, 8]),
        (numbered(1, Request::Fetch { word: Some(vec![7]), after: 300 }), &[1, 1, 24, 1, 1, 7, 0xac, 2]),
    ];
    let (found, id) = (numbered(1, Request::Find { id: SecretKey::from_bytes(&[1; 32]).id() }), [1, 1, 10]);
    assert_eq!((&found[4..7], found.len()), (&id[..], 4 + 3 + 32));
    for (bytes, body) in cases {
        assert_eq!(bytes[..4], (body.len() as u32).to_be_bytes());
        assert_eq!(&bytes[4..], body);
    }
    let reply = |response| encode(&Reply::Response { request: 9, response }).unwrap()[4..].to_vec();
    assert_eq!(reply(Response::Error { code: 30, message: "no".into() }), b"\x01\x00\x09\x00\x1e\x02no");
    assert_eq!(reply(Response::Accepted { seconds: 60 }), [1, 0, 9, 1, 60]);
    assert_eq!(reply(Response::Record { record: record.clone(), seconds: 60 }), [1, 0, 9, 2, 2, 7, 8, 60]);
    assert_eq!(reply(Response::Watching), [1, 0, 9, 3]);
    assert_eq!(reply(Response::Unwatched), [1, 0, 9, 4]);
    assert_eq!(reply(Response::Heard { codes: vec![0, 31] }), [1, 0, 9, 5, 2, 0, 31]);
    assert_eq!(reply(Response::Meeting { slot: 300, seconds: 5 }), [1, 0, 9, 6, 0xac, 2, 5]);
    assert_eq!(reply(Response::Admitted { domain: None }), [1, 0, 9, 7, 0]);
    assert_eq!(reply(Response::Invited { code: "yb".into() }), b"\x01\x00\x09\x08\x02yb");
    assert_eq!(reply(Response::Registered { seconds: 60, lease: 61 }), [1, 0, 9, 9, 60, 61]);
    assert_eq!(reply(Response::Appointment { appointment: vec![7, 8] }), [1, 0, 9, 14, 2, 7, 8]);
    let by = EndpointId::from_bytes(&[5; 32]);
    let batches = vec![LeftBehind { number: 300, by, seconds: 60, batch: vec![7, 8] }];
    let written: Vec<u8> = [&[1, 0, 9, 15, 1, 0xac, 2][..], &[5; 32], &[60, 2, 7, 8, 1]].concat();
    assert_eq!(reply(Response::Batches { batches, more: true }), written);
    assert_eq!(encode(&Reply::Update { watch: 4, record }).unwrap()[4..], [1, 1, 4, 2, 7, 8]);
    assert_eq!(encode(&Reply::News { watch: 4 }).unwrap()[4..], [1, 2, 4]);
}

fn refused(stream: &[u8]) -> ProtocolError {
    let mut decoder = Decoder::<Numbered>::new();
    decoder.push(stream);
    let error = decoder.next_message().unwrap_err();
    // It stays so, whatever comes.
    decoder.push(&encode(&Numbered { number: 1, request: Request::Unwatch { watch: 1 } }).unwrap());
    assert_eq!(decoder.next_message(), Err(error.clone()));
    error
}

#[test]
fn too_large_is_refused_when_announced() {
    assert_eq!(refused(&[0xff; 4]), ProtocolError::TooLarge(u32::MAX as usize));
    assert_eq!(refused(&[0, 0, 0x40, 1]), ProtocolError::TooLarge(MAX_MESSAGE + 1));
    let record = vec![0; MAX_MESSAGE];
    let large = Numbered { number: 1, request: Request::Publish { record } };
    assert!(matches!(encode(&large), Err(ProtocolError::TooLarge(_))));
}

#[test]
fn other_versions_and_nonsense_are_refused() {
    assert_eq!(refused(&[0, 0, 0, 2, 2, 0]), ProtocolError::Version(2));
    for stream in [
        &[0, 0, 0, 0][..],                     // no version
        &[0, 0, 0, 1, 1],                      // no message
        &[0, 0, 0, 3, 1, 1, 99],               // no such request
        &[0, 0, 0, 5, 1, 5, 4, 4, 0],          // something behind
        b"\x00\x00\x00\x06\x01\x03\x02\x02ab", // no name
    ] {
        assert!(matches!(refused(stream), ProtocolError::Malformed(_)), "{stream:?}");
    }
}

#[test]
fn heartbeats_are_bounded() {
    let name: Name = format!("a@{}", "b.".repeat(125) + "b").parse().unwrap();
    let beat =
        |count| Numbered { number: 1, request: Request::Heartbeat { names: vec![name.clone(); count] } };
    // The longest names fit.
    let most = encode(&beat(MAX_HEARTBEAT_NAMES)).unwrap();
    assert_eq!(decode::<Numbered>(&most, std::iter::empty()).unwrap().len(), 1);
    let more = encode(&beat(MAX_HEARTBEAT_NAMES + 1)).unwrap();
    assert!(matches!(refused(&more), ProtocolError::Malformed(_)));
}

#[test]
fn readers_are_bounded() {
    let record = vec![0; whimbrel_base::MAX_RECORD_BYTES];
    let name: Name = format!("a@{}", "b.".repeat(125) + "b").parse().unwrap();
    let register = |count| {
        let readers = Readers::Only(vec![Reader::User(name.clone()); count]);
        Numbered { number: 1, request: Request::Register { record: record.clone(), readers } }
    };
    // The longest names beside the largest record fit.
    let most = encode(&register(MAX_READERS)).unwrap();
    assert_eq!(decode::<Numbered>(&most, std::iter::empty()).unwrap().len(), 1);
    let more = encode(&register(MAX_READERS + 1)).unwrap();
    assert!(matches!(refused(&more), ProtocolError::Malformed(_)));
}

#[test]
fn error_texts_are_bounded() {
    let Response::Error { message, .. } = Response::refusal(ErrorCode::Busy, "é".repeat(2000)) else {
        panic!("no error");
    };
    assert_eq!(message.len(), MAX_ERROR_TEXT);
    let error = NamesError::NotFound("a@b".parse().unwrap());
    let Response::Error { code, message } = Response::error(&error) else {
        panic!("no error");
    };
    assert_eq!(ErrorCode::from_number(code), Some(ErrorCode::NotFound));
    assert_eq!(message, error.to_string());
}

//! What programs say to the SOCKS proxy, clients and gateways to each other, films of servers, and texts of
//! hosts and rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_proxy::{
    Answer, Arrival, Destination, Pattern, Publication, PublishRule, Request, host_of_name, name_of_host,
    read_anything_as_answer, read_anything_as_film, read_anything_as_part, read_anything_as_socks,
};

fuzz_target!(|data: &[u8]| {
    read_anything_as_socks(data);
    read_anything_as_film(data);
    read_anything_as_answer(data);
    read_anything_as_part(data);
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode(), data, "a request has one form");
    }
    if let Ok(answer) = Answer::decode(data) {
        assert_eq!(Answer::decode(&answer.encode()).map(|again| again.status), Ok(answer.status));
    }
    if let Ok(arrival) = Arrival::decode(data) {
        assert_eq!(arrival.encode(), data, "who has come is said in one form");
    }
    let Ok(text) = str::from_utf8(data) else { return };
    let _ = text.parse::<PublishRule>();
    if let Ok(Publication::Tls(host)) = text.parse() {
        assert_eq!(host.parse(), Ok(Publication::Tls(host.clone())), "a host has one form");
    }
    let _ = text.parse::<Pattern>();
    if let Ok(to) = text.parse::<Destination>() {
        assert_eq!(to.to_string().parse(), Ok(to), "what is understood can be said");
    }
    if let Some(name) = name_of_host(text) {
        assert_eq!(host_of_name(&name).as_deref(), Some(text), "a name has one host");
    }
});

//! The server name of a TLS ClientHello (RFC 8446 §4.1.2, RFC 6066 §3), read without ending TLS.
//!
//! A ClientHello may be cut into several records and packets. It is looked at anew with each piece that
//! comes, which costs little: there are [few bytes](MAX_HELLO) of it.

/// A ClientHello, with its records' headers, that is longer is nobody's whom a relay knows.
pub const MAX_HELLO: usize = 16 * 1024;

/// A record's content type: handshake.
const HANDSHAKE: u8 = 22;
const RECORD_HEADER: usize = 5;
const MAX_RECORD: usize = 16 * 1024;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// What the first bytes of a connection say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// Not enough yet.
    Partial,
    /// A ClientHello with the server name that it asks for.
    Named(String),
    /// A ClientHello without a server name, or no TLS at all.
    Other,
}

/// Reads the beginning of a connection.
pub fn read(bytes: &[u8]) -> Hello {
    let more = |hello| if bytes.len() >= MAX_HELLO { Hello::Other } else { hello };
    match handshake(bytes) {
        Err(Stop::More) => more(Hello::Partial),
        Err(Stop::Wrong) => Hello::Other,
        Ok(message) => match server_name(&message) {
            Ok(Some(name)) => Hello::Named(name),
            Ok(None) | Err(_) => Hello::Other,
        },
    }
}

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    More,
    Wrong,
}

/// The ClientHello's body, put together from its records.
fn handshake(mut bytes: &[u8]) -> Result<Vec<u8>, Stop> {
    let mut message = Vec::new();
    loop {
        let wanted = wanted(&message)?;
        if wanted.is_some_and(|wanted| message.len() >= wanted) {
            message.drain(..4);
            return Ok(message);
        }
        match bytes.first() {
            None => return Err(Stop::More),
            Some(&HANDSHAKE) => {}
            Some(_) => return Err(Stop::Wrong),
        }
        let Some((header, rest)) = bytes.split_at_checked(RECORD_HEADER) else { return Err(Stop::More) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[1] != 3 || length == 0 || length > MAX_RECORD {
            return Err(Stop::Wrong);
        }
        let (record, rest) = rest.split_at(length.min(rest.len()));
        message.extend_from_slice(record);
        if record.len() < length {
            // What is there may be enough to see that this is no ClientHello.
            self::wanted(&message)?;
            return Err(Stop::More);
        }
        bytes = rest;
    }
}

/// The size of the message that begins here, with its header; `None` if that is cut off.
fn wanted(message: &[u8]) -> Result<Option<usize>, Stop> {
    match message {
        [] => Ok(None),
        [CLIENT_HELLO, a, b, c, ..] => {
            let length = 4 + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c));
            if length > MAX_HELLO { Err(Stop::Wrong) } else { Ok(Some(length)) }
        }
        [CLIENT_HELLO, ..] => Ok(None),
        _ => Err(Stop::Wrong),
    }
}

/// Takes fields from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let (field, rest) = self.0.split_at_checked(count).ok_or(Stop::Wrong)?;
        self.0 = rest;
        Ok(field)
    }

    fn u8(&mut self) -> Result<u8, Stop> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Stop> {
        let field = self.take(2)?;
        Ok(u16::from_be_bytes([field[0], field[1]]))
    }

    /// What stands behind its length.
    fn short(&mut self) -> Result<Fields<'a>, Stop> {
        let length = self.u8()?;
        self.take(length.into()).map(Fields)
    }

    fn long(&mut self) -> Result<Fields<'a>, Stop> {
        let length = self.u16()?;
        self.take(length.into()).map(Fields)
    }
}

fn server_name(body: &[u8]) -> Result<Option<String>, Stop> {
    let mut hello = Fields(body);
    hello.take(2 + 32)?; // version, random
    hello.short()?; // session id
    hello.long()?; // cipher suites
    hello.short()?; // compression methods
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = hello.long()?;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let mut extension = extensions.long()?;
        if kind != SERVER_NAME {
            continue;
        }
        let mut names = extension.long()?;
        while !names.0.is_empty() {
            let kind = names.u8()?;
            let name = names.long()?.0;
            if kind == HOST_NAME {
                return Ok(std::str::from_utf8(name).ok().map(str::to_owned));
            }
        }
        return Ok(None);
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ClientHello's handshake message with these extensions.
    fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        let mut all = Vec::new();
        for (kind, bytes) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend((bytes.len() as u16).to_be_bytes());
            all.extend(bytes);
        }
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
        let mut message = vec![CLIENT_HELLO];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    fn named(name: &str) -> (u16, Vec<u8>) {
        let mut bytes = ((name.len() + 3) as u16).to_be_bytes().to_vec();
        bytes.push(HOST_NAME);
        bytes.extend((name.len() as u16).to_be_bytes());
        bytes.extend(name.as_bytes());
        (SERVER_NAME, bytes)
    }

    /// In records of so many bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |piece: &[u8]| {
            let mut record = vec![HANDSHAKE, 3, 1];
            record.extend((piece.len() as u16).to_be_bytes());
            record.extend(piece);
            record
        };
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_name_is_read_from_however_many_records_and_packets() {
        // As large as with ML-KEM.
        let message = message(&[(51, vec![0; 1300]), named("token"), (43, vec![2, 3, 4])]);
        for size in [1, 7, 500, 16_000] {
            let wire = records(&message, size);
            for cut in 0..wire.len() {
                assert_eq!(read(&wire[..cut]), Hello::Partial, "{cut} of records of {size}");
            }
            assert_eq!(read(&wire), Hello::Named("token".into()));
            let with_early_data = [&wire[..], &[23, 3, 3, 0, 1, 9]].concat();
            assert_eq!(read(&with_early_data), Hello::Named("token".into()));
        }
    }

    #[test]
    fn without_a_name_it_is_for_the_relay_itself() {
        assert_eq!(read(&records(&message(&[(51, vec![0; 40])]), 1000)), Hello::Other);
        assert_eq!(read(&records(&message(&[]), 1000)), Hello::Other);
    }

    #[test]
    fn what_is_no_client_hello_is_told_by_its_first_bytes() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"SSH-2.0-x", &[22, 9], &[22, 3, 1, 0, 4, 2], &[0]] {
            let told = read(bytes);
            assert!(told == Hello::Other || bytes.len() < RECORD_HEADER, "{bytes:?} {told:?}");
        }
        assert_eq!(read(&[22, 3, 1, 0, 4, 1, 1, 0, 0]), Hello::Other, "64 KiB");
        assert_eq!(read(&[22, 3, 1, 0, 0]), Hello::Other, "an empty record");
    }

    #[test]
    fn a_hello_without_end_is_given_up() {
        let huge = message(&[(51, vec![0; 16_200]), named("token")]);
        let wire = records(&huge, 100);
        assert!(wire.len() > MAX_HELLO);
        assert_eq!(read(&wire[..MAX_HELLO]), Hello::Other);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0..200_usize) {
            read(&bytes);
            let mut wire = records(&message(&[named("token")]), 30);
            let index = at % wire.len();
            wire[index] = bytes.first().copied().unwrap_or(0);
            read(&wire);
        }
    }
}

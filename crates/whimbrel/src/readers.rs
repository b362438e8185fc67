//! The readers of a published name, unless it is said otherwise: those who are let in under it.

use whimbrel_base::Name;
use whimbrel_names::readers::MAX_READERS;
use whimbrel_names::{Reader, Readers};
use whimbrel_transport::{Allow, ListenOptions};

/// These are more readers than a record may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more readers than the {MAX_READERS} that a record may have")]
pub struct TooManyReaders;

/// The readers of a name that is shown to these alone: they, and the devices of the name's own user.
///
/// # Errors
/// [`TooManyReaders`].
pub fn only(shown_to: impl IntoIterator<Item = Reader>, name: &Name) -> Result<Readers, TooManyReaders> {
    let mut readers = vec![Reader::User(name.user())];
    for reader in shown_to {
        if readers.contains(&reader) {
            continue;
        }
        if readers.len() == MAX_READERS {
            return Err(TooManyReaders);
        }
        readers.push(reader);
    }
    Ok(Readers::Only(readers))
}

/// The readers of a name that is listened for, if the options say whom they let in. A secret, a check and
/// everybody let in those whom nobody can name beforehand: then there are none to say.
pub(crate) fn of_listener(options: &ListenOptions, name: &Name) -> Option<Result<Readers, TooManyReaders>> {
    if options.has_secret() {
        return None;
    }
    let keys: Vec<_> = match options.allowed() {
        Allow::Nobody => Vec::new(),
        Allow::Only(keys) => keys.iter().copied().collect(),
        _ => return None,
    };
    Some(only(keys.into_iter().map(Reader::Key), name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::{SecretKey, TicketSecret};

    use super::*;

    fn key(number: u8) -> Reader {
        Reader::Key(SecretKey::from_bytes(&[number; 32]).id())
    }

    #[test]
    fn named_readers_are_beside_the_names_own_user_and_each_is_named_once() {
        let name: Name = "web.ada@example.org".parse().unwrap();
        let user = Reader::User("ada@example.org".parse().unwrap());
        let only_two = Readers::Only(vec![user.clone(), key(1)]);
        assert_eq!(only([key(1), user.clone(), key(1)], &name), Ok(only_two));
        assert!(only((1..=31).map(key), &name).is_ok());
        assert_eq!(only((1..=32).map(key), &name), Err(TooManyReaders));
    }

    #[test]
    fn a_listener_is_shown_to_those_whom_it_lets_in_if_it_names_them() {
        let id = SecretKey::from_bytes(&[1; 32]).id();
        let named = || ListenOptions::named("web.ada@example.org");
        let user = Reader::User("ada@example.org".parse().unwrap());
        let name: Name = "web.ada@example.org".parse().unwrap();
        let readers = |options| of_listener(&options, &name).map(Result::unwrap);
        assert_eq!(
            readers(named().allow(Allow::only([id]))),
            Some(Readers::Only(vec![user.clone(), key(1)]))
        );
        assert_eq!(readers(named()), Some(Readers::Only(vec![user])));
        assert_eq!(readers(named().allow(Allow::Any)), None);
        assert_eq!(readers(named().allow(Allow::check(|_| async { true }))), None);
        assert_eq!(readers(named().ticket_secret(TicketSecret::from_bytes(&[1; 16]))), None);
    }
}

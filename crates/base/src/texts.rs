//! Texts that a program may have at hand in several types.

/// Implements a trait of one method for types of text, by what it does with a `&str`.
#[doc(hidden)]
#[macro_export]
macro_rules! as_its_text {
    ($trait:ident, $method:ident, $result:ty, $($text:ty),+) => {$(
        impl $trait for $text {
            fn $method(self) -> $result {
                self.as_str().$method()
            }
        }
    )+};
}

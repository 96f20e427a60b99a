//! How is a value written down? Every message and record has one definition, from which both its encoding and
//! its decoding follow.
//!
//! A definition is a list of fields. The octets of a message or record are a `#[repr(C)]` struct of the
//! fields' octets, which has neither alignment nor padding; numbers are little-endian. So what is decoded is
//! read as that struct in place, and a field is judged when it becomes a value. Nothing here refers to shared
//! memory: its owner may change it at any moment, so it is copied out first ([`crate::Memory`]).

use atoll_base::{Addr, Endpoint, Epoch, Instant, ReplicaId, SessionId, SlotId};
use zerocopy::{
    FromBytes, FromZeros, I64, Immutable, IntoBytes, KnownLayout, LE, TryFromBytes, U16, U32, U64, Unaligned,
};

use crate::memory::Memory;

/// The payload of one ring entry in bytes.
pub const MESSAGE_BYTES: usize = 56;

/// The error of bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage;

/// A value with one way to write it down.
pub(crate) trait Field: Sized {
    /// The octets of a value.
    type Octets: Octets;

    /// Returns the octets of the value.
    fn write(&self) -> Self::Octets;

    /// Decodes octets that may be arbitrary; fails if they are no value.
    fn read(octets: &Self::Octets) -> Result<Self, BadMessage>;
}

/// Octets that may have any value, at any address.
pub(crate) trait Octets: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {}

impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned> Octets for T {}

/// Returns the octets of a `T` at `at`; fails if they lie beyond the end.
#[inline(always)]
pub(crate) fn part<T: Octets>(bytes: &[u8], at: usize) -> Result<&T, BadMessage> {
    bytes.get(at..).and_then(|rest| T::ref_from_prefix(rest).ok()).map(|(part, _)| part).ok_or(BadMessage)
}

/// Puts octets at `at`, where there is room for them.
#[inline(always)]
pub(crate) fn put<T: Octets>(bytes: &mut [u8], at: usize, part: &T) {
    bytes[at..at + size_of::<T>()].copy_from_slice(part.as_bytes());
}

/// Copies a value out of memory that another process may write, and judges the copy.
#[inline]
pub(crate) fn load<T: Field>(memory: &impl Memory, at: usize) -> Result<T, BadMessage> {
    let mut octets = T::Octets::new_zeroed();
    memory.read(at, octets.as_mut_bytes());
    T::read(&octets)
}

/// Writes a value to memory.
#[inline]
pub(crate) fn store<T: Field>(memory: &impl Memory, at: usize, value: &T) {
    memory.write(at, value.write().as_bytes());
}

/// Returns the eight octets of a value as the word that is stored in one step.
#[inline(always)]
pub(crate) fn word<T: Field>(value: &T) -> u64 {
    const { assert!(size_of::<T::Octets>() == size_of::<u64>()) };
    let mut octets = [0; size_of::<u64>()];
    octets.copy_from_slice(value.write().as_bytes());
    u64::from_le_bytes(octets)
}

/// Returns the value of a word that anybody may have stored; fails if it is none.
#[inline(always)]
pub(crate) fn of_word<T: Field>(word: u64) -> Result<T, BadMessage> {
    const { assert!(size_of::<T::Octets>() == size_of::<u64>()) };
    T::read(part(&word.to_le_bytes(), 0)?)
}

/// Returns the value of an enum that has this number.
#[inline]
pub(crate) fn number<T: TryFromBytes>(number: u8) -> Option<T> {
    T::try_read_from_bytes(&[number]).ok()
}

/// Defines the octets of values: `VALUE: TYPE as OCTETS, how they are written, how they are read`.
macro_rules! values {
    ($($value:ident: $Type:ty as $Octets:ty, $write:expr, $read:expr;)*) => {
        $(impl crate::layout::Field for $Type {
            type Octets = $Octets;

            #[inline(always)]
            fn write(&self) -> $Octets {
                let $value = *self;
                $write.into()
            }

            #[inline(always)]
            fn read($value: &$Octets) -> Result<$Type, crate::layout::BadMessage> {
                Ok($read)
            }
        })*
    };
}

values! {
    n: u8 as u8, n, *n;
    n: u16 as U16<LE>, n, n.get();
    n: u32 as U32<LE>, n, n.get();
    n: u64 as U64<LE>, n, n.get();
    n: i64 as I64<LE>, n, n.get();
    n: bool as u8, n, *n != 0;
    addr: Addr as [u8; 16], addr.octets(), Addr::from_octets(*addr);
    id: SlotId as U32<LE>, id.0, SlotId(id.get());
    id: SessionId as U32<LE>, id.0, SessionId(id.get());
    id: ReplicaId as u8, id.0, ReplicaId(*id);
    epoch: Epoch as U32<LE>, epoch.0, Epoch(epoch.get());
    at: Instant as U64<LE>, at.as_nanos(), Instant::from_nanos(at.get());
}

/// The octets of two fields.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Pair<A, B>(A, B);

impl<A: Field, B: Field> Field for (A, B) {
    type Octets = Pair<A::Octets, B::Octets>;

    #[inline(always)]
    fn write(&self) -> Self::Octets {
        Pair(self.0.write(), self.1.write())
    }

    #[inline(always)]
    fn read(octets: &Self::Octets) -> Result<(A, B), BadMessage> {
        Ok((A::read(&octets.0)?, B::read(&octets.1)?))
    }
}

/// Whether there is a value, and the value.
impl<T: Field + Default> Field for Option<T> {
    type Octets = Pair<u8, T::Octets>;

    #[inline(always)]
    fn write(&self) -> Self::Octets {
        Pair(self.is_some().into(), self.as_ref().map_or_else(|| T::default().write(), T::write))
    }

    #[inline(always)]
    fn read(octets: &Self::Octets) -> Result<Option<T>, BadMessage> {
        Ok(if octets.0 != 0 { Some(T::read(&octets.1)?) } else { None })
    }
}

impl<T: Field + Default, const N: usize> Field for [T; N] {
    type Octets = [T::Octets; N];

    #[inline(always)]
    fn write(&self) -> Self::Octets {
        self.each_ref().map(T::write)
    }

    #[inline(always)]
    fn read(octets: &Self::Octets) -> Result<[T; N], BadMessage> {
        let mut values = [(); N].map(|()| T::default());
        for (value, octets) in values.iter_mut().zip(octets) {
            *value = T::read(octets)?;
        }
        Ok(values)
    }
}

/// Defines the octet of an enum whose values are numbers, and which derives `TryFromBytes`. Of numbers that
/// it does not have, either none is a value, or all are the same one: `else OTHER`.
macro_rules! numbered {
    ($Enum:ident) => {
        impl $Enum {
            /// Returns the value with this number; `None` if there is none.
            #[inline]
            pub fn from_u8(n: u8) -> Option<$Enum> {
                crate::layout::number(n)
            }
        }
        crate::layout::numbered!($Enum, n => $Enum::from_u8(n).ok_or(crate::layout::BadMessage));
    };
    ($Enum:ident else $other:ident) => {
        impl $Enum {
            #[doc = concat!("Returns the value with this number; any other: `", stringify!($other), "`.")]
            #[inline]
            pub fn from_u8(n: u8) -> $Enum {
                crate::layout::number(n).unwrap_or($Enum::$other)
            }
        }
        crate::layout::numbered!($Enum, n => Ok($Enum::from_u8(n)));
    };
    ($Enum:ident, $n:ident => $read:expr) => {
        impl crate::layout::Field for $Enum {
            type Octets = u8;

            #[inline(always)]
            fn write(&self) -> u8 {
                *self as u8
            }

            #[inline(always)]
            fn read(&$n: &u8) -> Result<$Enum, crate::layout::BadMessage> {
                $read
            }
        }
    };
}

/// The octets of a field, followed by unused octets that are written as 0 and never read.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Padded<T, const N: usize>(pub(crate) T, pub(crate) [u8; N]);

/// Name, offset and size of each field of a record.
#[cfg(test)]
pub(crate) trait Record {
    const FIELDS: &'static [(&'static str, usize, usize)];
}

/// Defines a struct and its octets: its fields in their order, each perhaps followed by octets that are not
/// used. With `if PREDICATE`, values for which that method returns false are refused.
macro_rules! record {
    (
        $(#[$of_struct:meta])*
        $visibility:vis struct $Type:ident {
            $($(#[$of_field:meta])* $of_whom:vis $field:ident: $Field:ty $(; $unused:literal unused)?,)*
        } $(if $is_valid:ident)?
    ) => {
        $(#[$of_struct])*
        $visibility struct $Type { $($(#[$of_field])* $of_whom $field: $Field,)* }

        crate::layout::record!(for $Type { $($field: $Field $(; $unused unused)?,)* } $(if $is_valid)?);
    };
    (
        for $Type:ident { $($field:ident: $Field:ty $(; $unused:literal unused)?,)* }
        $(if $is_valid:ident)?
    ) => {
        const _: () = {
            use crate::layout::{BadMessage, Field, Padded};

            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
            #[derive(zerocopy::Immutable, zerocopy::Unaligned)]
            #[repr(C)]
            pub(crate) struct Octets { $($field: Padded<<$Field as Field>::Octets, { 0 $(+ $unused)? }>,)* }

            impl Field for $Type {
                type Octets = Octets;

                #[inline(always)]
                fn write(&self) -> Octets {
                    Octets {
                        $($field: Padded(<$Field as Field>::write(&self.$field), [0; 0 $(+ $unused)?]),)*
                    }
                }

                #[inline(always)]
                fn read(octets: &Octets) -> Result<$Type, BadMessage> {
                    let value = $Type { $($field: <$Field as Field>::read(&octets.$field.0)?,)* };
                    $(if !value.$is_valid() {
                        return Err(BadMessage);
                    })?
                    Ok(value)
                }
            }

            #[cfg(test)]
            impl crate::layout::Record for $Type {
                const FIELDS: &'static [(&'static str, usize, usize)] = &[$(
                    (
                        stringify!($field),
                        core::mem::offset_of!(Octets, $field),
                        size_of::<<$Field as Field>::Octets>(),
                    ),
                )*];
            }
        };
    };
}

/// Defines the places of words that are loaded and stored one by one, in memory that two processes share, as
/// a struct of which there never is a value: `offset_of!` has the places.
macro_rules! words {
    (
        $(#[$of_struct:meta])*
        $visibility:vis struct $Type:ident {
            $($(#[$of_field:meta])* $field:ident: $Field:ty $(; $unused:literal unused)?,)*
        }
    ) => {
        $(#[$of_struct])*
        #[allow(dead_code)] // Only the places of its fields are used.
        #[repr(C)]
        $visibility struct $Type {
            $($(#[$of_field])* $field: crate::layout::Padded<
                <$Field as crate::layout::Field>::Octets, { 0 $(+ $unused)? }
            >,)*
        }

        #[cfg(test)]
        impl crate::layout::Record for $Type {
            const FIELDS: &'static [(&'static str, usize, usize)] = &[$((
                stringify!($field),
                core::mem::offset_of!($Type, $field),
                size_of::<<$Field as crate::layout::Field>::Octets>(),
            ),)*];
        }
    };
}

// Words that are loaded and stored one by one have the byte order of the machine, all else is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "a layout has one byte order");

/// The fields of the messages of kind `KIND`.
pub(crate) trait Message<const KIND: u8> {
    /// The octets of the fields.
    type Fields: Octets;
}

/// Defines an enum of messages, and their octets: a head, whose first field is the kind, and the fields of
/// the variant of this kind in their order.
macro_rules! messages {
    (
        $(#[$of_enum:meta])*
        $visibility:vis enum $Enum:ident after $Head:ty {
            $(
                $(#[$of_variant:meta])*
                $Variant:ident = $kind:literal $({ $($field:ident: $Field:ty),* $(,)? })?,
            )*
        }
    ) => {
        $(#[$of_enum])*
        $visibility enum $Enum { $($(#[$of_variant])* $Variant $({ $($field: $Field),* })?,)* }

        $(const _: () = {
            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
            #[derive(zerocopy::Immutable, zerocopy::Unaligned)]
            #[repr(C)]
            pub(crate) struct Fields { $($($field: <$Field as crate::layout::Field>::Octets,)*)? }

            const _: () = assert!(<$Enum>::HEAD_BYTES + size_of::<Fields>() <= MESSAGE_BYTES);

            impl crate::layout::Message<$kind> for $Enum {
                type Fields = Fields;
            }
        };)*

        impl $Enum {
            const HEAD_BYTES: usize = size_of::<<$Head as crate::layout::Field>::Octets>();

            /// Writes the kind, and the fields behind the head.
            #[inline]
            fn write(&self, bytes: &mut [u8; MESSAGE_BYTES]) {
                match self {
                    $($Enum::$Variant { $($($field,)*)? } => {
                        type Fields = <$Enum as crate::layout::Message<$kind>>::Fields;
                        let fields = Fields { $($($field: crate::layout::Field::write($field),)*)? };
                        bytes[0] = $kind;
                        crate::layout::put(bytes, Self::HEAD_BYTES, &fields);
                    })*
                }
            }

            /// Decodes the message of the kind that the first octet names.
            #[inline]
            fn read(bytes: &[u8; MESSAGE_BYTES]) -> Result<$Enum, BadMessage> {
                match bytes[0] {
                    $($kind => {
                        type Fields = <$Enum as crate::layout::Message<$kind>>::Fields;
                        let _fields: &Fields = crate::layout::part(bytes, Self::HEAD_BYTES)?;
                        Ok($Enum::$Variant { $($($field: crate::layout::Field::read(&_fields.$field)?,)*)? })
                    })*
                    _ => Err(BadMessage),
                }
            }
        }
    };
}

pub(crate) use {messages, numbered, record, values, words};

record!(for Endpoint { addr: Addr, port: u16, });

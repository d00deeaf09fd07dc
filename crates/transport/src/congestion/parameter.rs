//! Parameters as tables: each is a field with its unit, bounds, meaning, what happens at its extremes, and where its default
//! comes from. The struct, its documentation, reading by name and the checks are made from one list.

use alloc::string::String;

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Name of the field, as configuration spells it. It ends in its unit.
    pub name: &'static str,
    /// Least value.
    pub least: f64,
    /// Greatest value.
    pub most: f64,
    /// 1 is true, 0 is false.
    pub is_truth: bool,
    /// What it is.
    pub meaning: &'static str,
    /// What happens at its extremes.
    pub extremes: &'static str,
    /// Where the default comes from.
    pub source: &'static str,
}

impl Parameter {
    /// Its unit, for people; `1` for numbers and parts, `0 or 1` for what is true or false.
    pub fn unit(&self) -> &'static str {
        const BY_ENDING: [(&str, &str); 7] = [
            ("_ns", "ns"),
            ("_bps", "bit/s"),
            ("_bytes", "bytes"),
            ("byte_reset", "bytes"),
            ("_fac", "percent"),
            ("cwnd", "packets"),
            ("ai", "packets"),
        ];
        let by_ending = BY_ENDING.iter().find(|(ending, _)| self.name.ends_with(ending)).map(|(_, unit)| *unit);
        by_ending.unwrap_or(if self.is_truth { "0 or 1" } else { "1" })
    }
}

/// What is wrong with a choice of parameters, and what could be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Invalid {}

/// What a parameter is in its struct: everything passes configuration as a number.
pub(crate) trait Value: Copy {
    /// What its bounds are written as.
    type Bound;
    /// Whether it is true or false, and no number.
    const IS_TRUTH: bool = false;
    fn from_number(value: f64) -> Option<Self>;
    fn number(self) -> f64;
}

impl Value for f64 {
    type Bound = f64;
    fn from_number(value: f64) -> Option<Self> {
        value.is_finite().then_some(value)
    }
    fn number(self) -> f64 {
        self
    }
}

impl Value for u64 {
    type Bound = u64;
    fn from_number(value: f64) -> Option<Self> {
        // Above 2^53 a number of a configuration file is not exact any more.
        let whole = value as u64;
        ((0.0..=9_007_199_254_740_992.0).contains(&value) && whole as f64 == value).then_some(whole)
    }
    fn number(self) -> f64 {
        self as f64
    }
}

impl Value for bool {
    type Bound = u64;
    const IS_TRUTH: bool = true;
    fn from_number(value: f64) -> Option<Self> {
        match value {
            0.0 => Some(false),
            1.0 => Some(true),
            _ => None,
        }
    }
    fn number(self) -> f64 {
        f64::from(u8::from(self))
    }
}

macro_rules! parameters {
    ($(#[$m:meta])* $name:ident {
        $( $field:ident: $type:ty, $least:literal ..= $most:literal, $meaning:literal, $extremes:literal, $source:literal; )*
    }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $(
                #[doc = $meaning]
                #[doc = concat!(" ", stringify!($least), " to ", stringify!($most), ".")]
                #[doc = concat!(" ", $extremes)]
                #[doc = concat!(" Source of the default: ", $source)]
                pub $field: $type,
            )*
        }

        impl $name {
            /// The table.
            #[allow(clippy::unnecessary_cast)]
            pub const TABLE: &'static [$crate::congestion::Parameter] = &[
                $( $crate::congestion::Parameter {
                    name: stringify!($field),
                    least: $least as <$type as $crate::congestion::parameter::Value>::Bound as f64,
                    most: $most as <$type as $crate::congestion::parameter::Value>::Bound as f64,
                    is_truth: <$type as $crate::congestion::parameter::Value>::IS_TRUTH,
                    meaning: $meaning,
                    extremes: $extremes,
                    source: $source,
                }, )*
            ];

            /// Sets a parameter by its name. True and false are 1 and 0.
            pub fn set(&mut self, name: &str, value: f64) -> Result<(), $crate::congestion::Invalid> {
                $crate::congestion::parameter::check_value(Self::TABLE, name, value)?;
                match name {
                    $( stringify!($field) => {
                        self.$field = <$type as $crate::congestion::parameter::Value>::from_number(value)
                            .ok_or_else(|| $crate::congestion::parameter::not_whole(name, value))?;
                    } )*
                    _ => {}
                }
                Ok(())
            }

            /// A parameter by its name.
            pub fn get(&self, name: &str) -> Option<f64> {
                match name {
                    $( stringify!($field) => Some($crate::congestion::parameter::Value::number(self.$field)), )*
                    _ => None,
                }
            }

            /// Whether each parameter is within its bounds.
            pub fn check_bounds(&self) -> Result<(), $crate::congestion::Invalid> {
                $( $crate::congestion::parameter::check_value(
                    Self::TABLE,
                    stringify!($field),
                    $crate::congestion::parameter::Value::number(self.$field),
                )?; )*
                Ok(())
            }
        }
    };
}
pub(crate) use parameters;

pub(crate) fn check_value(table: &[Parameter], name: &str, value: f64) -> Result<(), Invalid> {
    let Some(row) = table.iter().find(|row| row.name == name) else {
        let names: alloc::vec::Vec<&str> = table.iter().map(|row| row.name).collect();
        return Err(Invalid(alloc::format!("no parameter `{name}`: there are {}", names.join(", "))));
    };
    if value.is_nan() || value < row.least || value > row.most {
        return Err(Invalid(alloc::format!(
            "{name} is {value}: {} to {} is possible. {}",
            row.least,
            row.most,
            row.extremes
        )));
    }
    Ok(())
}

pub(crate) fn not_whole(name: &str, value: f64) -> Invalid {
    Invalid(alloc::format!(
        "{name} is {value}: a whole number, or true or false where there are two choices, is expected"
    ))
}

//! Output of `pierhead cache ls`: a table of images, one row per platform.

use std::io;

use pierhead_oci::units::human_bytes;

use super::output::{Output, ago};
use crate::admin::api::{Image, ImagePlatform};
use crate::cli::terminal::{MAX_PLATFORM_CHARS, escaped};

const HEADING: [&str; 6] = [
    "IMAGE", "PLATFORM", "SIZE", "COMPLETE", "PINNED", "LAST USE",
];

impl Output {
    pub(super) fn images(self, images: &[Image]) -> io::Result<()> {
        if self.json {
            return images.iter().try_for_each(|image| self.object(image));
        }
        for line in table(images) {
            self.line(line)?;
        }
        Ok(())
    }
}

fn table(images: &[Image]) -> Vec<String> {
    let mut rows = vec![HEADING.map(str::to_owned)];
    for image in images {
        rows.extend(image.platforms.iter().map(|it| row(image, Some(it))));
        // An image index whose platforms are all missing in the cache.
        if image.platforms.is_empty() {
            rows.push(row(image, None));
        }
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            2 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn row(image: &Image, platform: Option<&ImagePlatform>) -> [String; 6] {
    let yes_or_no = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let name = platform.and_then(|it| it.platform.as_deref());
    // The name of the platform comes from the image, so it may contain control characters.
    let name = name.map(|platform| escaped(platform, MAX_PLATFORM_CHARS));
    [
        image.image.clone(),
        name.unwrap_or_else(|| "-".to_owned()),
        human_bytes(platform.map_or(image.size, |it| it.size)),
        yes_or_no(platform.is_some_and(|it| it.complete)),
        yes_or_no(image.pinned),
        platform.map_or_else(|| "-".to_owned(), |it| ago(it.accessed)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_platform_is_a_row_below_the_heading() {
        let digest: pierhead_oci::Digest = format!("sha256:{}", "0".repeat(64))
            .parse()
            .expect("a digest");
        let platform = |name: &str, complete| ImagePlatform {
            platform: Some(name.to_owned()),
            digest,
            size: 3 << 20,
            complete,
            accessed: 0,
        };
        let image = |image: &str, pinned, platforms| Image {
            image: image.to_owned(),
            digests: Vec::new(),
            digest: Some(digest),
            size: 700,
            pinned,
            platforms,
        };
        let images = [
            image(
                "docker.io/library/redis:7",
                true,
                vec![
                    platform("linux/amd64", true),
                    platform("linux/arm64/v8", false),
                ],
            ),
            image("quay.io/a:1", false, Vec::new()),
        ];
        assert_eq!(
            table(&images),
            [
                "IMAGE                      PLATFORM           SIZE  COMPLETE  PINNED  LAST USE",
                "docker.io/library/redis:7  linux/amd64     3.0 MiB  yes       yes     never",
                "docker.io/library/redis:7  linux/arm64/v8  3.0 MiB  no        yes     never",
                "quay.io/a:1                -                 700 B  no        no      -",
            ]
        );
    }

    #[test]
    fn control_characters_and_long_names_of_platforms_do_not_break_the_table() {
        let digest: pierhead_oci::Digest = format!("sha256:{}", "0".repeat(64))
            .parse()
            .expect("a digest");
        let platform = |name: String| ImagePlatform {
            platform: Some(name),
            digest,
            size: 0,
            complete: true,
            accessed: 0,
        };
        let image = Image {
            image: "a.io/b:1".to_owned(),
            digests: Vec::new(),
            digest: Some(digest),
            size: 0,
            pinned: false,
            platforms: vec![
                platform("linux\u{1b}]0;x\u{7}\ndocker.io/library/redis:7".to_owned()),
                platform(format!("linux/{}", "x".repeat(60_000))),
            ],
        };
        for line in table(&[image]) {
            assert!(!line.contains(char::is_control), "{line:?}");
            assert!(line.chars().count() < 150, "{} characters", line.len());
        }
    }
}

//! The images that are shipped, as OCI layouts: directories that `skopeo` uploads as they are. No daemon takes part, and
//! the same inputs always give the same bytes: no times, no owners, no order of a directory or a hash map gets in.

mod layer;
mod layout;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use oci_spec::image::{
    ANNOTATION_LICENSES, ANNOTATION_REVISION, ANNOTATION_TITLE, ANNOTATION_VERSION, Arch, ConfigBuilder, Descriptor,
    DescriptorBuilder, HistoryBuilder, ImageConfiguration, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, Os, PlatformBuilder, RootFsBuilder, SCHEMA_VERSION,
};

use crate::image::layer::{File, Layer};
use crate::image::layout::Layout;
use crate::read;

/// What goes into the images, and where they go.
#[derive(clap::Args)]
pub(crate) struct Images {
    /// The directory that gets one layout per image: softclose and softclose-wasm
    #[arg(long)]
    to: PathBuf,
    /// The module
    #[arg(long)]
    module: PathBuf,
    /// The static binary of an architecture, as amd64=PATH; once for each
    #[arg(long = "binary", required = true, value_parser = binary)]
    binaries: Vec<(Architecture, PathBuf)>,
    /// The commit that all of it was built from
    #[arg(long)]
    revision: String,
}

/// As Go and OCI name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

/// The user and group of Istio's proxy: what one initContainer installed the next one may replace, and runAsNonRoot is content.
const USER: &str = "1337:1337";

/// The one file that Istio's agent looks for in an image.
const PLUGIN: &str = "plugin.wasm";

/// Not the time of the build, which would make each build another image. The revision says how old it is.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Tells which of the layouts that Istio's agent knows this is (solo-io/wasm, `spec-compat.md`). Optional.
const VARIANT: (&str, &str) = ("module.wasm.image/variant", "compat");

/// Lays out both images and prints the digest of each: what `image@sha256:..` and a WasmPlugin's `sha256` name.
pub(crate) fn lay_out(images: &Images) -> Result<()> {
    let module = read(&images.module)?;
    let shim = images.shim(&module)?;
    let wasm = images.wasm(&module)?;
    for (name, descriptor) in [("softclose", shim), ("softclose-wasm", wasm)] {
        println!("{}  {}", descriptor.digest(), images.to.join(name).display());
    }
    Ok(())
}

impl Images {
    /// Binary and module, for an initContainer: an index of one image per architecture.
    fn shim(&self, module: &[u8]) -> Result<Descriptor> {
        let mut layout = Layout::create(&self.to.join("softclose"))?;
        let mut manifests = Vec::new();
        for (architecture, path) in &self.binaries {
            let binary = read(path)?;
            let layer = Layer::of(&[
                File { name: "softclose", mode: 0o555, bytes: &binary },
                File { name: "softclose.wasm", mode: 0o444, bytes: module },
            ])
            .with_context(|| format!("cannot pack {}", path.display()))?;
            let config = ConfigBuilder::default()
                .user(USER)
                .entrypoint(vec!["/softclose".to_owned()])
                .working_dir("/")
                .labels(self.about("softclose"))
                .build()?;
            let config = configuration(architecture.arch(), &layer)?.config(config).build()?;
            let manifest = self.image(&mut layout, &config, layer, self.about("softclose"))?;
            let platform = PlatformBuilder::default().architecture(architecture.arch()).os(Os::Linux).build()?;
            manifests.push(described(&manifest).platform(platform).build()?);
        }
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests(manifests)
            .annotations(self.about("softclose"))
            .build()?;
        let index = layout.json(MediaType::ImageIndex, &index)?;
        layout.finish(&index)?;
        Ok(index)
    }

    /// The module alone, for Istio's agent: the "compat" variant, one image and no index, since the agent takes the amd64 one
    /// out of an index whatever node it runs on.
    fn wasm(&self, module: &[u8]) -> Result<Descriptor> {
        let mut layout = Layout::create(&self.to.join("softclose-wasm"))?;
        let layer = Layer::of(&[File { name: PLUGIN, mode: 0o444, bytes: module }])?;
        // A module has no architecture, and an image has to name one; what builds images from scratch names the builder's.
        let config = configuration(Arch::Amd64, &layer)?.build()?;
        let mut about = self.about("softclose-wasm");
        about.insert(VARIANT.0.to_owned(), VARIANT.1.to_owned());
        let manifest = self.image(&mut layout, &config, layer, about)?;
        layout.finish(&manifest)?;
        Ok(manifest)
    }

    fn image(
        &self,
        layout: &mut Layout,
        config: &ImageConfiguration,
        layer: Layer,
        about: HashMap<String, String>,
    ) -> Result<Descriptor> {
        let config = layout.json(MediaType::ImageConfig, config)?;
        let layer = layout.blob(MediaType::ImageLayerGzip, &layer.packed)?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(vec![layer])
            .annotations(about)
            .build()?;
        layout.json(MediaType::ImageManifest, &manifest)
    }

    fn about(&self, title: &str) -> HashMap<String, String> {
        [
            (ANNOTATION_TITLE, title),
            (ANNOTATION_VERSION, env!("CARGO_PKG_VERSION")),
            (ANNOTATION_REVISION, &self.revision),
            (ANNOTATION_LICENSES, env!("CARGO_PKG_LICENSE")),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}

fn configuration(architecture: Arch, layer: &Layer) -> Result<ImageConfigurationBuilder> {
    let rootfs = RootFsBuilder::default().typ("layers").diff_ids(vec![layer.unpacked_digest.clone()]).build()?;
    let history = HistoryBuilder::default().created(CREATED).created_by("softclose-package images").build()?;
    Ok(ImageConfigurationBuilder::default()
        .created(CREATED)
        .architecture(architecture)
        .os(Os::Linux)
        .rootfs(rootfs)
        .history(vec![history]))
}

fn described(descriptor: &Descriptor) -> DescriptorBuilder {
    DescriptorBuilder::default()
        .media_type(descriptor.media_type().clone())
        .size(descriptor.size())
        .digest(descriptor.digest().clone())
}

impl Architecture {
    fn arch(self) -> Arch {
        match self {
            Self::Amd64 => Arch::Amd64,
            Self::Arm64 => Arch::ARM64,
        }
    }
}

/// `amd64=PATH`.
fn binary(text: &str) -> Result<(Architecture, PathBuf), String> {
    let (architecture, path) = text.split_once('=').ok_or("is not ARCHITECTURE=PATH, as amd64=dist/softclose")?;
    Ok((Architecture::from_str(architecture, false)?, Path::new(path).to_owned()))
}

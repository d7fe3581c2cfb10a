# What a Go binary was built from (`go version -m -json`) as a bill of materials of
# CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/. $version is wake's.
def component(kind; version):
  {type: kind, name: .Path, version: version, purl: "pkg:golang/\(.Path)@\(version)", "bom-ref": "\(.Path)@\(version)"}
  + if .Sum then {properties: [{name: "go:sum", value: .Sum}]} else {} end;

{
  bomFormat: "CycloneDX",
  specVersion: "1.6",
  version: 1,
  metadata: {component: (.Main | component("application"; $version))},
  components: (
    [{Path: "std", Version: (.GoVersion | ltrimstr("go"))}] + [.Deps[] | .Replace // .]
    | map(component("library"; .Version))
  )
}

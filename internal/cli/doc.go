// Package cli is what the verbs of weir share: options and the loader that reads
// them from flags, environment and file, the usage text, exit codes, logs, and how
// values are written and read. It knows no product. A verb turns flags into the
// configuration of its product's package and runs that; verbs live in the folder
// cmd of their product, and cmd/weir puts them together.
package cli

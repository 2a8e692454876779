package backupcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/version"
)

// archiveFlags are the flags of the verbs that write into an archive.
type archiveFlags struct {
	compress       string
	recipients     []string
	recipientFiles []string
	passphraseFile string
	rateLimit      string
}

func (a *archiveFlags) add(f *pflag.FlagSet) {
	f.StringVar(&a.compress, "compress", "zstd:1", "zstd, gzip, lz4 or none, with :LEVEL")
	cli.Takes(f, "compress", "zstd", "gzip", "lz4", "none")
	f.StringArrayVar(&a.recipients, "encrypt-recipient", nil, "encrypt to this age or SSH public key (repeatable)")
	f.StringArrayVar(&a.recipientFiles, "encrypt-recipients-file", nil, "encrypt to the public keys in this file, one a line (repeatable)")
	f.StringVar(&a.passphraseFile, "encrypt-passphrase-file", "", "encrypt with the passphrase on the first line of this file")
	f.StringVar(&a.rateLimit, "rate-limit", "", "maximum bytes per second written to the storage, such as 20MB")
}

// options reads the files of the flags, so that problems with them are reported before anything
// starts.
func (a *archiveFlags) options() (archive.Options, error) {
	o := archive.Options{Weir: version.Current().Version}
	var err error
	if o.Compression, err = archive.ParseCompression(a.compress); err != nil {
		return o, fmt.Errorf("--compress: %w", err)
	}
	o.Encryption.Recipients = append(o.Encryption.Recipients, a.recipients...)
	for _, name := range a.recipientFiles {
		text, err := os.ReadFile(name)
		if err != nil {
			return o, fmt.Errorf("--encrypt-recipients-file: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				o.Encryption.Recipients = append(o.Encryption.Recipients, line)
			}
		}
	}
	if o.Encryption.Passphrase, err = readPassphrase("--encrypt-passphrase-file", a.passphraseFile); err != nil {
		return o, err
	}
	if a.rateLimit != "" {
		n, err := cli.ParseSize(a.rateLimit)
		if err != nil || n <= 0 {
			return o, fmt.Errorf("--rate-limit %q: want bytes per second, such as 20MB", a.rateLimit)
		}
		o.Rate = int64(n)
	}
	return o, nil
}

// readPassphrase returns the first line of a file, or "" if name is "".
func readPassphrase(flag, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 {
		return "", fmt.Errorf("%s: the first line of %s is empty", flag, name)
	}
	return string(line), nil
}

// keyFlags are the flags with keys of the verbs that read an archive.
type keyFlags struct {
	identities     []string
	passphraseFile string
}

func (k *keyFlags) add(f *pflag.FlagSet) {
	f.StringArrayVarP(&k.identities, "identity", "i", nil, "`FILE` with an age identity or SSH private key (repeatable)")
	f.StringVar(&k.passphraseFile, "passphrase-file", "", "file with the passphrase on its first line")
}

func (k *keyFlags) options() (archive.ReadOptions, error) {
	var o archive.ReadOptions
	for _, name := range k.identities {
		text, err := os.ReadFile(name)
		if err != nil {
			return o, fmt.Errorf("--identity: %w", err)
		}
		o.Identities = append(o.Identities, text)
	}
	var err error
	o.Passphrase, err = readPassphrase("--passphrase-file", k.passphraseFile)
	return o, err
}

// arguments returns the flags for a command line that another program runs.
func (k *keyFlags) arguments() []string {
	var args []string
	for _, name := range k.identities {
		args = append(args, "--identity", name)
	}
	if k.passphraseFile != "" {
		args = append(args, "--passphrase-file", k.passphraseFile)
	}
	return args
}

// addHooks adds the flags of what runs and is notified before and after a backup.
func addHooks(f *pflag.FlagSet, h *notice.Hooks) {
	f.StringVar(&h.Before, "hook-before", "", "shell command to run first; if it fails, nothing is backed up")
	f.StringVar(&h.After, "hook-after", "", "shell command to run at the end, with WEIR_BACKUP_* in its environment")
	f.StringVar(&h.Webhook, "webhook", "", "`URL` to which the outcome is posted as JSON")
	f.StringVar(&h.MetricsFile, "metrics-file", "", "file for node_exporter's textfile collector, written atomically")
}

// openBackup opens the backup that args name: a place, and perhaps an id.
func openBackup(ctx context.Context, args []string, keys *keyFlags) (*archive.Reader, error) {
	opts, err := keys.options()
	if err != nil {
		return nil, cli.UsageError(err)
	}
	id := ""
	if len(args) > 1 {
		id = args[1]
	}
	r, err := archive.OpenLocation(ctx, args[0], id, opts)
	if err != nil {
		return nil, hinted(err)
	}
	return r, nil
}

// damaged reports whether an error says that a backup is damaged.
func damaged(err error) bool {
	for _, fault := range []error{
		archive.ErrEdited, archive.ErrIncomplete, archive.ErrMissing, archive.ErrTruncated, archive.ErrCorrupt, archive.ErrSwapped,
	} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// hinted adds to an error about a backup what to do about it.
func hinted(err error) error {
	var chunk *archive.ChunkError
	switch {
	case errors.Is(err, archive.ErrNoKey):
		return fmt.Errorf("%w: --identity FILE or --passphrase-file FILE gives one", err)
	case errors.Is(err, archive.ErrEdited):
		return fmt.Errorf("%w: restore the file from another copy; weir backup verify says whether the chunks are good", err)
	case errors.As(err, &chunk) && chunk.Hint() != "" && !strings.Contains(err.Error(), chunk.Hint()):
		return fmt.Errorf("%w; %s", err, chunk.Hint())
	}
	return err
}

// placeText returns a location for messages: without the parameters of a bucket.
func placeText(location string) string {
	if rest, ok := strings.CutPrefix(location, "s3://"); ok {
		rest, _, _ = strings.Cut(rest, "?")
		return "s3://" + rest
	}
	return location
}

// durationText formats a duration: 0.8s, 12s, 3m04s, 2h07m.
func durationText(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// printWarnings prints each warning on a line.
func printWarnings(w io.Writer, warnings []string) {
	for _, s := range warnings {
		fmt.Fprintln(w, "warning:", s)
	}
}

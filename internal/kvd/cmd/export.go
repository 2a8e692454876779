package kvcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/dump"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/kv"
)

// addPatient defines the flags of a verb that may take long: --timeout applies to each answer.
func (k *kvClient) addPatient(cmd *cobra.Command) {
	k.add(cmd)
	f := cmd.Flags().Lookup("timeout")
	f.Usage, f.DefValue = "DURATION|give up if no answer arrives for this long", "30s"
	k.timeout, k.patient = 30*time.Second, true
}

func newKVExport() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[dump.Summary]
	var weak bool
	var data string
	cmd := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Write all keys into a file, for weir kv import",
		Long: `Write all keys with their values, times to live and leases as lines of JSON, with a
digest at the end. Without FILE, or for -, they go to standard output. FILE must not
exist, and appears when it is complete. Keys are read page by page while others write:
a page of up to 2000 keys is a snapshot, the whole export is not.

--data reads the keys from the data directory of a stopped replica, such as the last
disk after a majority was lost. It includes all entries of the log, even those that the
replica does not know to be committed, so the export has every acknowledged write that
is on this disk.`,
		Example: `  weir kv export backup.kv
  weir kv export --data /rescue/weir rescued.kv`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			head := dump.Head{Cluster: k.cluster, Time: time.Now().UTC().Truncate(time.Second), Weak: weak}
			if weak && data != "" {
				return cli.UsageError(errors.New("give --weak or --data, not both"))
			}
			if data != "" {
				store, last, err := replica.Rescue(data)
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s: the log up to entry %d\n", data, last); err != nil {
					return err
				}
				return export(cmd, args, &asJSON, func(w io.Writer) (dump.Summary, error) { return dump.FromStore(store, head, w) })
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				e := dump.Export{Client: c, Patience: k.timeout, Head: head}
				return export(cmd, args, &asJSON, func(w io.Writer) (dump.Summary, error) { return e.To(ctx, w) })
			})
		},
	}
	k.addPatient(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	cmd.Flags().BoolVar(&weak, "weak", false, "ask the nearest replica, which may be behind and needs no leader")
	cmd.Flags().StringVar(&data, "data", "", "DIR|read a replica's data directory instead, offline")
	return cmd
}

// export writes to the file in the arguments, or to standard output, and prints a summary.
func export(cmd *cobra.Command, args []string, asJSON *cli.JSON[dump.Summary], to func(io.Writer) (dump.Summary, error)) error {
	if len(args) == 0 || args[0] == "-" {
		sum, err := to(cmd.OutOrStdout())
		if err != nil {
			return err
		}
		return exported(cmd.ErrOrStderr(), "standard output", sum, asJSON)
	}
	sum, err := exportTo(args[0], to)
	if err != nil {
		return err
	}
	return exported(cmd.OutOrStdout(), args[0], sum, asJSON)
}

// exportTo writes a file that appears under its name only when it is complete.
func exportTo(name string, to func(io.Writer) (dump.Summary, error)) (sum dump.Summary, err error) {
	if _, err := os.Lstat(name); err == nil {
		return sum, fmt.Errorf("%s exists; give the export another name", name)
	}
	part := name + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return sum, fmt.Errorf("begin the export: %w", err)
	}
	sum, err = to(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return sum, errors.Join(err, os.Remove(part))
	}
	if err := os.Rename(part, name); err != nil {
		return sum, fmt.Errorf("end the export: %w", err)
	}
	return sum, nil
}

func exported(w io.Writer, where string, sum dump.Summary, asJSON *cli.JSON[dump.Summary]) error {
	if asJSON.Given() {
		return asJSON.Print(w, sum)
	}
	_, err := fmt.Fprintf(w, "%d keys, %d bytes, to %s; %d have a time to live, %d a lease; digest of those that stay: %s\n", sum.Keys, sum.Bytes, where, sum.Timed, sum.Leased, sum.Digest)
	return err
}

func newKVImport() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[*dump.Report]
	i := dump.Import{}
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Write the keys of an export into a cluster",
		Long: `Write the keys of a file that weir kv export has written, or weir kv range --limit none
--json, into a cluster; - is standard input. The file is checked before anything is
written, and the cluster afterwards: it must hold each key with its value.

A cluster that holds other keys, or other values, is refused unless --overwrite is given.
To continue an import that a crash or an error has stopped, run it again: it does not
write keys that the cluster already has.

Times to live continue with what was left at the export. Keys of leases are skipped,
because their holders have no lease in the new cluster; --keep-leased writes them as
permanent keys. Revisions start over, and so do the ids of leases, which are fencing
tokens: programs must forget those of the old cluster.

Exit code 3: the file is damaged, or the cluster does not hold its keys afterwards.`,
		Example: `  weir kv import backup.kv
  weir kv import --overwrite --json backup.kv`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			file, end, err := openDump(cmd, args[0])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, end()) }()
			if _, err := dump.Check(file); err != nil { // before connecting to the cluster
				return fmt.Errorf("%w; nothing was written", ofDump(args[0], err))
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				i.Client, i.Dump, i.Patience = c, file, k.timeout
				r, err := i.Run(ctx)
				if err != nil {
					return ofDump(args[0], err)
				}
				return imported(cmd, &r, &asJSON)
			})
		},
	}
	k.addPatient(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	cmd.Flags().BoolVar(&i.Overwrite, "overwrite", false, "take a cluster that is not empty: keys of the file get its values, others stay")
	cmd.Flags().BoolVar(&i.KeepLeased, "keep-leased", false, "write keys of leases, too, as keys that stay")
	return cmd
}

// ofDump returns the error of an import with its exit code and a hint.
func ofDump(name string, err error) error {
	var damaged *dump.DamagedError
	var differ *dump.DifferError
	var notEmpty *dump.NotEmptyError
	switch {
	case errors.As(err, &damaged):
		return cli.Shortfall(fmt.Errorf("%s: %w", name, err))
	case errors.As(err, &differ):
		return cli.Shortfall(err)
	case errors.As(err, &notEmpty):
		return fmt.Errorf("%w. Import into an empty cluster, or give --overwrite: keys of the file get its values, others stay", err)
	}
	return err
}

func imported(cmd *cobra.Command, r *dump.Report, asJSON *cli.JSON[*dump.Report]) error {
	if r.Ageless {
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "the file tells nothing of times to live and leases: all of its keys stay (weir kv export writes what does)"); err != nil {
			return err
		}
	}
	if asJSON.Given() {
		return asJSON.Print(cmd.OutOrStdout(), r)
	}
	text := fmt.Sprintf("%d keys, %d bytes: %d written, %d were there\n", r.Keys, r.Bytes, r.Written, r.Same)
	if r.Timed > 0 {
		text += fmt.Sprintf("%d keys have a time to live; %d of them are gone already\n", r.Timed, r.Gone)
	}
	if r.Skipped > 0 {
		text += fmt.Sprintf("%d keys with leases were left out (--keep-leased)\n", r.Skipped)
	}
	if r.Others > 0 {
		text += fmt.Sprintf("%d other keys of the cluster stayed\n", r.Others)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%sverified: the cluster has the file's keys and values; digest of those that stay: %s\n", text, r.ClusterHas)
	return err
}

// openDump opens a dump, which is read more than once: standard input is copied to a file.
func openDump(cmd *cobra.Command, name string) (io.ReadSeeker, func() error, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, fmt.Errorf("open the export: %w", err)
		}
		return f, f.Close, nil
	}
	f, err := os.CreateTemp("", "weir-kv-import-")
	if err != nil {
		return nil, nil, fmt.Errorf("keep standard input: %w", err)
	}
	end := func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }
	if _, err := io.Copy(f, cmd.InOrStdin()); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("keep standard input in %s: %w", f.Name(), err), end())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read %s: %w", f.Name(), err), end())
	}
	return f, end, nil
}

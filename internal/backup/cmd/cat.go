package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/cli"
)

func newCatCommand() *cobra.Command {
	var keys keyFlags
	var list, stored bool
	var asJSON cli.JSON[[]archive.Chunk]
	cmd := &cobra.Command{
		Use:   "cat PLACE [ID] PATH",
		Short: "Print an object of a backup, decrypted and decompressed",
		Long: `Print one object of a backup to standard output: rows in COPY format, SQL, or a part
of a base backup. Every byte is verified; if one is bad, the exit code is 3, and what
was printed must be discarded. --list lists the objects instead.`,
		Example: `  weir backup cat /backups --list
  weir backup cat /backups db/shop/schema/pre-data.sql
  weir backup cat /backups 20261121T163528Z-shop db/shop/data/public.orders/0001.copy | head`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case list && (len(args) < 1 || len(args) > 2):
				return errors.New("--list: want PLACE and perhaps the backup's ID")
			case !list && (len(args) < 2 || len(args) > 3):
				return errors.New("want PLACE, perhaps the backup's ID, and PATH; --list lists the paths")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			place := args
			if !list {
				place = args[:len(args)-1]
			}
			r, err := openBackup(ctx, place, &keys)
			if err != nil {
				if damaged(err) {
					return cli.Shortfall(err)
				}
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			if list {
				return listChunks(r.Manifest(), &asJSON, out)
			}
			return catChunk(ctx, r, args[len(args)-1], stored, out)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "list the objects of the backup")
	asJSON.Flag(cmd.Flags(), "with --list: print JSON")
	f.BoolVar(&stored, "stored", false, "print the bytes as they are stored")
	keys.add(f)
	return cmd
}

// catChunk prints a chunk. name may have the suffixes of its file.
func catChunk(ctx context.Context, r *archive.Reader, name string, stored bool, out io.Writer) error {
	for _, c := range r.Manifest().Chunks {
		if c.File == name {
			name = c.Path
		}
	}
	open := r.Chunk
	if stored {
		open = r.Stored
	}
	in, err := open(ctx, name)
	if err == nil {
		_, err = io.Copy(out, in)
		err = errors.Join(err, in.Close())
	}
	var bad *archive.ChunkError
	switch {
	case errors.As(err, &bad) && !errors.Is(err, archive.ErrWrongKey):
		return cli.Shortfall(hinted(err))
	case errors.Is(err, archive.ErrNotExist):
		return fmt.Errorf("%w; --list lists what there is", err)
	}
	return hinted(err)
}

func listChunks(m *archive.Manifest, asJSON *cli.JSON[[]archive.Chunk], out io.Writer) error {
	if asJSON.Given() {
		return asJSON.Print(out, m.Chunks)
	}
	for _, c := range m.Chunks {
		note := ""
		if c.Kind == archive.KindData {
			note = fmt.Sprintf("  %d rows", c.Rows)
		}
		line := fmt.Sprintf("%10s  %10s  %s%s", cli.ByteText(c.PlainBytes), cli.ByteText(c.StoredBytes), c.Path, note)
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " ")); err != nil {
			return fmt.Errorf("list objects: %w", err)
		}
	}
	return nil
}

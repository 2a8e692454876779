package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Replace writes a chunk that is cheap to produce, replacing the one that an earlier run may
// have left under its path. It completes in the background; see [ChunkWriter.CloseAsync].
func (w *Writer) Replace(ctx context.Context, info ChunkInfo, fill func(io.Writer) error) error {
	if _, ok := w.Done(info.Path); ok {
		if err := w.Discard(ctx, info.Path); err != nil {
			return fmt.Errorf("write %s again: %w", info.Path, err)
		}
	}
	chunk, err := w.Chunk(ctx, info)
	if err != nil {
		return fmt.Errorf("write %s: %w", info.Path, err)
	}
	if err := fill(chunk); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", info.Path, err), chunk.Abort())
	}
	if err := chunk.CloseAsync(); err != nil {
		return fmt.Errorf("write %s: %w", info.Path, err)
	}
	return nil
}

// Sweep removes chunks that do not belong to this backup any more, such as those of a table
// that was dropped since an earlier run: the stale ones, and all of earlier runs for which used
// returns false.
func (w *Writer) Sweep(ctx context.Context, stale []string, used func(path string) bool) error {
	if err := w.awaitAll(); err != nil {
		return err
	}
	for _, c := range w.Resumed() {
		stale = append(stale, c.Path)
	}
	for _, path := range stale {
		if _, written := w.Done(path); !written || used(path) {
			continue
		}
		if err := w.Discard(ctx, path); err != nil {
			return fmt.Errorf("remove chunk %s of an earlier attempt: %w", path, err)
		}
	}
	return nil
}

package backupbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
)

// directBlock is how much is written at a time, with or without the page cache.
const directBlock = 1 << 20

// The ways of writing an archive's file.
const (
	writeBuffered = "buffered"
	writeDropped  = "buffered, then dropped from the cache"
	writeDirect   = "O_DIRECT"
)

// direct compares ways of writing a durable file: through the page cache, as weir does, the
// same with advice to drop the pages, and bypassing the cache.
func (r *rig) direct(ctx context.Context) error {
	n := r.o.Plan.Copy &^ (directBlock - 1)
	path := filepath.Join(r.o.Out, "direct.tmp")
	defer os.Remove(path) //nolint:errcheck // it does not exist if no round ran
	block := aligned(directBlock)
	rng := rand.NewChaCha8([32]byte{2})
	_, _ = rng.Read(block) // never fails
	e := r.microExperiment("direct-io", "A file of "+sizeText(n)+" that is durable at the end, with and without the page cache", map[string]string{"bytes": strconv.FormatInt(n, 10), "block": strconv.Itoa(directBlock)})
	for _, how := range []string{writeBuffered, writeDropped, writeDirect} {
		if err := writeFile(path, how, block, directBlock); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			r.Leave("%s: the file system of %s does not support it", how, filepath.Base(r.o.Out))
			continue
		} else if err != nil {
			return err
		}
		side := r.repeated(how, n, func(context.Context) (int64, error) { return n, writeFile(path, how, block, n) })
		repeat := side.Run
		side.Run = func(ctx context.Context, round int) (bench.Sample, error) {
			s, err := repeat(ctx, round)
			if err != nil {
				return s, err
			}
			cached, err := cachedBytes(path)
			moves.Of(s.Parts).Inside = map[string]float64{"cached": float64(cached) / 1e6}
			return s, err
		}
		e.Sides = append(e.Sides, side)
	}
	if len(e.Sides) < 2 {
		return nil
	}
	e.Baseline = writeBuffered
	_, err := r.Measure(ctx, e, r.env, r.o.Out)
	return err
}

// aligned returns memory with the alignment that direct writes need.
func aligned(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	off := 0
	if at := uintptr(unsafe.Pointer(&b[0])) & (page - 1); at != 0 {
		off = page - int(at)
	}
	return b[off : off+n : off+n]
}

// writeFile writes a block repeatedly, n bytes in all, and makes them durable.
func writeFile(path, how string, block []byte, n int64) (err error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if how == writeDirect {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	for left := n; left > 0 && err == nil; left -= int64(len(block)) {
		_, err = f.Write(block)
	}
	err = errors.Join(err, f.Sync())
	if how == writeDropped && err == nil {
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write file, %s: %w", how, err)
	}
	return nil
}

// cachedBytes is how much of a file is in the page cache.
func cachedBytes(path string) (_ int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("inspect the page cache: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return 0, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("inspect the page cache: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(m)) }()
	page := os.Getpagesize()
	pages := make([]byte, (len(m)+page-1)/page)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&pages[0])))
	runtime.KeepAlive(m)
	if errno != 0 {
		return 0, fmt.Errorf("inspect the page cache: %w", errno)
	}
	n := 0
	for _, p := range pages {
		n += int(p & 1)
	}
	return int64(n * page), nil
}

package archive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/weirdb/weir/batch"
)

// A journal records, while a backup runs, which of its chunks are complete. It is a text with a
// line for each chunk:
//
//	{"chunk":{"path":"db/shop/data/public.orders/0001.copy",...},"crc32c":"9ae0daaf"}
//
// Every run of a backup writes a journal of its own, with the number of the run, so that no
// line follows a torn one. Lines that complete during a flush share the next flush (package
// batch): a hundred thousand small tables do not cost a hundred thousand flushes.
type journal struct {
	lines *batch.Batcher[struct{}, []byte, struct{}]
	sink  appendFile
}

// journalGroup limits the lines of one flush.
const journalGroup = 1024

// openJournal creates the journal of a run of the backup in dir.
func openJournal(ctx context.Context, s Storage, dir string, run int) (*journal, error) {
	sink, err := openAppend(ctx, s, fmt.Sprintf("%s%s%04d", dir, logPrefix, run))
	if err != nil {
		return nil, fmt.Errorf("begin journal: %w", err)
	}
	j := &journal{sink: sink}
	j.lines = batch.New(batch.Options[[]byte]{Config: batch.Config{Lanes: 1, MaxItems: journalGroup}}, j.flush)
	return j, nil
}

// add appends a line, and returns when it is durable.
func (j *journal) add(ctx context.Context, line []byte) error {
	_, err := j.lines.Submit(ctx, struct{}{}, line)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

func (j *journal) flush(_ struct{}, lines [][]byte, _ []batch.Result[struct{}]) error {
	return j.sink.Append(bytes.Join(lines, nil))
}

func (j *journal) close() error {
	return errors.Join(j.lines.Close(), j.sink.Close())
}

// openAppend opens a file to append to, or a series of objects if the storage cannot append.
func openAppend(ctx context.Context, s Storage, name string) (appendFile, error) {
	if a, can := s.(appender); can {
		return a.appendTo(name + ".jsonl")
	}
	return &objectRow{ctx: ctx, storage: s, name: name}, nil
}

// objectRow is an appendFile that stores each piece as an object.
type objectRow struct {
	ctx     context.Context
	storage Storage
	name    string
	pieces  int
}

func (r *objectRow) Append(data []byte) error {
	r.pieces++
	return r.storage.Put(r.ctx, fmt.Sprintf("%s-%06d.jsonl", r.name, r.pieces), data)
}

func (r *objectRow) Close() error { return nil }

// journalLine is one line. Exactly one of its first two fields is set.
type journalLine struct {
	Chunk   json.RawMessage `json:"chunk,omitempty"`
	Discard string          `json:"discard,omitempty"` // path of a chunk that is no longer complete

	// Sum is the CRC-32C of the bytes of the field that is set: a torn or changed line is
	// ignored, and its chunk is written again.
	Sum string `json:"crc32c"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumOf(data []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)) }

func chunkLine(c Chunk) ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write journal: %w", err)
	}
	return finishLine(journalLine{Chunk: data, Sum: sumOf(data)})
}

func discardLine(path string) ([]byte, error) {
	return finishLine(journalLine{Discard: path, Sum: sumOf([]byte(path))})
}

func finishLine(l journalLine) ([]byte, error) {
	data, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("write journal: %w", err)
	}
	return append(data, '\n'), nil
}

// maxJournalLine limits the length of a line, which describes a chunk.
const maxJournalLine = 1 << 20

// readJournal applies a journal to done, by path. It skips lines that are torn, changed or
// invalid, and returns their number: a chunk that is not proven complete is written again.
func readJournal(r io.Reader, done map[string]Chunk) (bad int, err error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(lines, maxJournalLine)
		if len(line) > 0 && !applyLine(line, done) {
			bad++
		}
		if errors.Is(err, io.EOF) {
			return bad, nil
		}
		if err != nil {
			return bad, fmt.Errorf("read journal: %w", err)
		}
	}
}

// readLine returns the next line without its end. It cuts a line that is longer than limit.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		if len(line)+len(piece) <= limit+1 {
			line = append(line, piece...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\n"), err
		}
	}
}

func applyLine(data []byte, done map[string]Chunk) bool {
	var line journalLine
	if json.Unmarshal(data, &line) != nil {
		return false
	}
	if line.Discard != "" {
		if line.Chunk != nil || line.Sum != sumOf([]byte(line.Discard)) {
			return false
		}
		delete(done, line.Discard)
		return true
	}
	var c Chunk
	if line.Sum != sumOf(line.Chunk) || json.Unmarshal(line.Chunk, &c) != nil || c.check() != nil {
		return false
	}
	done[c.Path] = c
	return true
}

// readJournals reads the journals of all runs of a backup, in their order.
func readJournals(ctx context.Context, s Storage, dir string) (map[string]Chunk, error) {
	done := map[string]Chunk{}
	var names []string
	for o, err := range s.List(ctx, dir, false) {
		if err != nil {
			return nil, fmt.Errorf("look for journals: %w", err)
		}
		if strings.HasPrefix(o.Name, dir+logPrefix) {
			names = append(names, o.Name)
		}
	}
	for _, name := range sortedNames(names) {
		r, err := s.Open(ctx, name, 0)
		if err != nil {
			return nil, fmt.Errorf("read journal: %w", err)
		}
		_, err = readJournal(r, done)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
	}
	return done, nil
}

package restore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
)

// ErrDiffers says that what was restored differs from the backup.
var ErrDiffers = errors.New("it differs from the backup")

// ErrNeeds says that an object was left out because one that it depends on failed.
var ErrNeeds = errors.New("left out, for it needs")

// Why a resumed restore does not load the rows of a table. Both errors end the run, so that it
// can be resumed.
var (
	ErrBeside    = errors.New("the table has rows that the restore has not loaded: empty the table, and --resume loads the backup's rows")
	ErrTriggered = errors.New("the table has triggers already, which loading rows would fire: drop them, and --resume loads the rows and creates the backup's triggers again")
)

// A Refusal is an error about the state of a target, which --resume does not change.
type Refusal struct{ Err error }

// Refuse returns a [Refusal].
func Refuse(format string, args ...any) error { return &Refusal{fmt.Errorf(format, args...)} }

func (r *Refusal) Error() string { return r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

// Independent reports whether an error concerns one object only, so that others can still be
// restored: it is not about the connection or the storage, not a cancelled run, and not an
// error after which --resume can continue.
func Independent(err error) bool {
	var object *ObjectError
	if !errors.As(err, &object) {
		return false
	}
	var chunk *archive.ChunkError
	if errors.As(err, &chunk) {
		return true
	}
	for _, end := range []error{context.Canceled, context.DeadlineExceeded, ErrBeside, ErrTriggered, io.ErrUnexpectedEOF, io.EOF, net.ErrClosed, os.ErrDeadlineExceeded} {
		if errors.Is(err, end) {
			return false
		}
	}
	var network net.Error
	var place *archive.Error
	return !errors.As(err, &network) && !errors.As(err, &place)
}

// Err returns an error that sums up the failures of a result, or nil. It matches [ErrDiffers]
// if all of them do.
func (r *Result) Err() error {
	if len(r.Failed) == 0 {
		return nil
	}
	first := r.Failed[0]
	for _, f := range r.Failed {
		if !errors.Is(f, ErrDiffers) {
			first = f
			break
		}
	}
	if len(r.Failed) == 1 {
		return first
	}
	return fmt.Errorf("%d objects could not be restored, the first: %w", len(r.Failed), first)
}

// WriteRest writes what is left to do as a script for the server's own client. location and id
// are those of the backup.
func (r *Result) WriteRest(w io.Writer, location, id string) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "-- What the restore of backup %s has left to do: %s failed.\n", id, Objects(len(r.Failed)))
	database := ""
	for _, f := range append(r.Failed[:len(r.Failed):len(r.Failed)], r.Broken...) {
		if f.Database != database {
			database = f.Database
			fmt.Fprintf(out, "\n-- in database %s\n", oneLine(database))
		}
		fmt.Fprintf(out, "\n-- %s\n-- %s\n", oneLine(f.Object), oneLine(f.Err.Error()))
		if f.Chunk != "" {
			fmt.Fprintf(out, "-- its rows: weir backup cat %s %s %s\n", oneLine(location), id, oneLine(f.Chunk))
		}
		if f.Rest != "" {
			fmt.Fprintf(out, "%s\n", strings.TrimSpace(f.Rest))
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write what is left to do: %w", err)
	}
	return nil
}

// Objects writes a number of objects.
func Objects(n int) string {
	if n == 1 {
		return "1 object"
	}
	return strconv.Itoa(n) + " objects"
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// First returns the beginning of a statement, on one line and without secrets.
func First(s string, n int) string {
	s = oneLine(HideSecrets(s))
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + " …"
	}
	return s
}

// RowsError returns an error about the rows of a chunk, which the statement load loads into the
// table.
func RowsError(database, table string, c *archive.Chunk, load string, err error) error {
	return &ObjectError{Database: database, Object: "rows of table " + table + " (" + c.Path + ")", Rest: "-- " + oneLine(load), Chunk: c.Path, Err: err}
}

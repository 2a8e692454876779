package backupcmd

import (
	"errors"
	"testing"

	"github.com/weirdb/weir/internal/backup/restore"
)

// TestFailedObjectsAreListed: those of several databases may be called alike.
func TestFailedObjectsAreListed(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	object := func(database, name string) *restore.ObjectError {
		return &restore.ObjectError{Database: database, Object: name, Err: refused}
	}
	for _, c := range []struct {
		objects []*restore.ObjectError
		want    string
	}{
		{nil, ""},
		{[]*restore.ObjectError{object("a", "INDEX i"), object("a", "INDEX j")}, "failed: INDEX j: refused\n"},
		{
			[]*restore.ObjectError{object("a", "INDEX i"), object("b", "INDEX i"), object("", "grants")},
			"failed in database a: INDEX i: refused\nfailed in database b: INDEX i: refused\nfailed: grants: refused\n",
		},
	} {
		r := restore.Result{Failed: c.objects}
		if got := failedText(c.objects, r.Err()); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

package resp

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadUsers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(file, []byte("# comment\ngeheim\n\nreader:seen:readonly\r\nwriter:with:colon\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadUsers(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []User{
		{Name: "default", Password: "geheim"},
		{Name: "reader", Password: "seen", ReadOnly: true},
		{Name: "writer", Password: "with:colon"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
}

//go:build !(linux && amd64)

package residence

// Watch does not exist here.
type Watch struct{}

// Start returns ErrUnsupported.
func Start([]int) (*Watch, error) { return nil, ErrUnsupported }

// Add does nothing.
func (*Watch) Add([]int) error { return ErrUnsupported }

// Read returns nothing.
func (*Watch) Read() (Totals, error) { return Totals{}, ErrUnsupported }

// Close does nothing.
func (*Watch) Close() error { return nil }

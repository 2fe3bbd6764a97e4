//go:build !amd64

package kernel

import "testing"

// eachSIMD runs f with every instruction set that this processor has.
func eachSIMD(t *testing.T, f func(t *testing.T)) { t.Run("Go", f) }

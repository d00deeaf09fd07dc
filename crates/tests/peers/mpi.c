/* What Open MPI does with one-sided puts, for `cargo xtask bench --peers`: two processes, the first puts into the memory of the second.
 *
 *   mpi bw SIZE SECONDS     Gb/s of puts of SIZE bytes, 8 to a flush
 *   mpi rate SIZE SECONDS   puts a second, 1024 to a flush: small ones are coalesced
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, is_rate, is_over = 0;
    long size, list, count = 0;
    double seconds, begin, passed = 0;
    char *bytes, *memory;
    MPI_Win window;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 4) {
        fprintf(stderr, "usage: mpi bw|rate SIZE SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    is_rate = !strcmp(argv[1], "rate");
    size = atol(argv[2]);
    seconds = atof(argv[3]);
    list = is_rate ? 1024 : 8;
    bytes = calloc(1, size);
    MPI_Win_allocate(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        /* Once to warm up, then what counts. */
        for (int round = 0; round < 2; round++) {
            double length = round ? seconds : seconds / 10;
            count = 0;
            begin = MPI_Wtime();
            do {
                for (long i = 0; i < list; i++)
                    MPI_Put(bytes, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
                MPI_Win_flush(1, window);
                count += list;
                passed = MPI_Wtime() - begin;
            } while (passed < length);
        }
        is_over = 1;
        MPI_Send(&is_over, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        printf("%g\n", is_rate ? count / passed : count * (double)size * 8 / passed / 1e9);
    } else {
        /* Its library makes progress when it is called. */
        MPI_Recv(&is_over, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}

// Calibration: opened and read, described, refused, and caches made with it. The argument is a folder to write to.
#include "check.hpp"
#include "calibration.h"
#include <array>
#include <fstream>
#include <iterator>
#include <string>

static_assert(moves_only<certkv::Calibration> && sizeof(certkv::Calibration) == sizeof(void *));

static std::vector<std::uint8_t> contents(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    std::vector<std::uint8_t> bytes;
    for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
        bytes.push_back(static_cast<std::uint8_t>(*at));
    }
    return bytes;
}

static std::array<std::uint8_t, 32> digest(std::uint8_t of)
{
    std::array<std::uint8_t, 32> made{};
    made.fill(of);
    return made;
}

static certkv::Config calibrated(const certkv::Calibration &calibration)
{
    certkv::Config config = small();
    config.format = "ctq4-v4g64-b16";
    config.calibration = calibration.get();
    return config;
}

int main(int count, char **given)
{
    if (count != 2) {
        return 2;
    }
    const std::string path = std::string(given[1]) + "/calibration";
    TRUE(sealed_file(path.c_str(), calibration_bytes));
    std::vector<std::uint8_t> bytes = contents(path);
    TRUE(bytes.size() > 1000);
    certkv::Calibration calibration = *certkv::Calibration::open(path.c_str(), digest(7));
    OK(certkv::Calibration::open(path.c_str()));
    REFUSED(CERTKV_FILE_REFUSED, "model", certkv::Calibration::open(path.c_str(), digest(8)));
    REFUSED(CERTKV_FILE, "nowhere", certkv::Calibration::open("/nowhere"));
    REFUSED(CERTKV_NULL_POINTER, "path", certkv::Calibration::open(nullptr));
    const certkv::Calibration same = *certkv::Calibration::read(bytes, digest(7));
    REFUSED(CERTKV_FILE_REFUSED, "model", certkv::Calibration::read(bytes, digest(8)));
    OK(certkv::Calibration::read(bytes));
    const certkv_calibration_info info = *calibration.describe();
    TRUE(info.layers == 2 && info.head_dim == DIM && info.model[31] == 7 && std::memcmp(info.digest, same.describe()->digest, 32) == 0);
    bytes[200] ^= 1;
    REFUSED(CERTKV_FILE_DAMAGED, "changed or damaged", certkv::Calibration::read(bytes));
    bytes.pop_back();
    REFUSED(CERTKV_FILE_DAMAGED, "bytes of", certkv::Calibration::read(bytes));

    certkv::Config config = calibrated(calibration);
    config.layers = 3;
    REFUSED(CERTKV_FILE_REFUSED, "config->calibration", certkv::Cache::create(config));
    REFUSED(CERTKV_INVALID_ARGUMENT, "config->calibration", certkv::Cache::create(calibrated(certkv::Calibration())));
    config = calibrated(calibration);
    const certkv::Cache cache = *certkv::Cache::create(config);
    OK(calibration.close());
    OK(calibration.close());
    REFUSED(CERTKV_INVALID_HANDLE, "calibration", certkv::Cache::create(config));
    REFUSED(CERTKV_NULL_POINTER, "calibration", calibration.describe());

    const certkv::Sequence sequence = filled(cache);
    const std::vector<float> row = rows(1, 3), query(Q, 0.25f);
    std::vector<float> out(Q);
    std::vector<certkv_certificate> certificates(Q_HEADS);
    auto step = cache.begin(sequence);
    OK(step->append(0, row, row));
    OK(step->attend(0, query, out, certificates));
    for (const certkv_certificate &certificate : certificates) {
        TRUE(held(&certificate));
        TRUE(certificate.packed_bytes > 0);
    }
    OK(step->abort());
    return report();
}
